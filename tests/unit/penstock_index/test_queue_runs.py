"""Runs of consecutive queue entries, and records that can have none."""

import numpy as np
import pytest

from penstock.contracts import DispatchBatch
from penstock.format.columns import RecordColumns
from penstock.format.record import PREPARED, ROLLBACK, RecordFields, encode_record
from penstock_index.queue_files import ENTRY
from penstock_index.queue_runs import runs_of


def batch_of(*given: RecordFields) -> DispatchBatch:
    records = [encode_record(fields) for fields in given]
    starts = np.cumsum([0, *map(len, records)])
    columns = RecordColumns.parse(b"".join(records), starts[:-1], 0)
    return DispatchBatch(columns, 0, int(starts[-1]))


def of(topic: bytes, queue: int, offset: int, sys_flag: int = 0) -> RecordFields:
    return RecordFields(topic=topic, body=b"", queue=queue, queue_offset=offset, sys_flag=sys_flag, store_time_ms=offset)  # fmt: skip


def test_a_run_ends_where_its_queue_offsets_do() -> None:
    batch = batch_of(of(b"t", 0, 5), of(b"u", 0, 0), of(b"t", 0, 6), of(b"t", 0, 9), of(b"t", 1, 0))
    found = [(run.topic, run.queue, run.ordinal, len(run.data) // 20) for run in runs_of(batch)]
    assert sorted(found) == [("t", 0, 5, 2), ("t", 0, 9, 1), ("t", 1, 0, 1), ("u", 0, 0, 1)]
    (run,) = (each for each in runs_of(batch) if each.ordinal == 5)
    offsets = np.frombuffer(run.data, ENTRY)["log_offset"].tolist()
    assert offsets == [0, int(batch.log_offsets[2])]
    assert (run.log_offset, run.store_times.tolist()) == (0, [5, 6])


@pytest.mark.parametrize("flag", [PREPARED, ROLLBACK])
def test_what_was_not_committed_has_no_entry(flag: int) -> None:
    assert list(runs_of(batch_of(of(b"t", 0, 0, flag)))) == []


def test_what_can_have_no_folder_is_named_by_its_log_offset() -> None:
    batch = batch_of(of(b"a/b", 0, 0), of(b"t", 70_000, 0), of(b"t", 0, -1), of(b"t", 0, 1 << 62))
    found = list(runs_of(batch))
    assert [run.topic for run in found] == [None] * 4
    assert sorted(run.log_offset for run in found) == batch.log_offsets.tolist()
