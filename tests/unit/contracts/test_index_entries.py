"""Queue entries and index files from batches: the kernel's work on plain buffers, and what hostile ones get."""

import numpy as np
import pytest

from penstock import _kernel
from penstock.contracts import index_entries
from penstock.contracts.dispatch_batch import SCHEDULE_TOPIC, DispatchBatch
from penstock.contracts.index_entries import (
    entry_runs,
    find_in_index_file,
    queue_entries,
    split_entries,
)
from penstock.format.columns import RecordColumns, ScannedColumns
from penstock.format.record import RecordFields, encode_record
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL

ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log"), 120)


def test_entries_are_grouped_by_queue_and_lead_to_their_records(log: WrittenLog) -> None:
    (batch,) = log.batches()
    made = queue_entries(batch, queue_offset_max=1 << 50)
    assert len(made.entries) == 20 * 120
    assert len(made.runs) == 6
    entries = np.frombuffer(made.entries, ENTRY)
    for topic, queue, ordinal, first, log_offset in made.runs.tolist():
        row = batch.log_offsets.tolist().index(log_offset)
        assert (int(batch.topic_rows[row]), int(batch.queues[row])) == (topic, queue)
        assert (ordinal, int(entries["log_offset"][first])) == (0, log_offset)
    assert sorted(entries["log_offset"].tolist()) == batch.log_offsets.tolist()


def parsed(batch: DispatchBatch) -> DispatchBatch:
    """The same records, as columns of numpy that no scan made."""
    columns = batch.columns
    parsed = RecordColumns.parse(columns.window, columns.positions, batch.start_offset)
    return DispatchBatch(parsed, batch.start_offset, batch.end_offset)


def delayed(log_offset: int, topic: bytes, properties: bytes) -> bytes:
    fields = RecordFields(
        topic=topic, body=b"", properties=properties, queue=1, queue_offset=log_offset, log_offset=log_offset,
        store_time_ms=1_700_000_000_000, born_time_ms=1,
    )  # fmt: skip
    return encode_record(fields)


def delays() -> DispatchBatch:
    """Records of a schedule topic among others, as they are scanned."""
    data = b""
    for topic, text in (
        (b"t", b"TAGS\1a\2"),
        (SCHEDULE_TOPIC, b"DELAY\x013\2"),
        (SCHEDULE_TOPIC, b"TAGS\1b\2"),
    ):
        data += delayed(len(data), topic, text)
    rows, end, _, _ = _kernel.scan(data, 0, 0, b"")
    assert end == len(data)
    return DispatchBatch(ScannedColumns(data, rows, end), 0, end)


@pytest.mark.parametrize("is_delayed", [False, True])
def test_runs_of_scanned_records_are_the_entries_of_their_columns(
    log: WrittenLog, is_delayed: bool
) -> None:
    batch = delays() if is_delayed else log.batches()[0]
    assert batch.scanned is not None
    other = parsed(batch)
    assert other.scanned is None
    for limits in ({"queue_offset_max": 1 << 50}, {"queue_max": 1, "queue_offset_max": 5}):
        assert entry_runs(batch, **limits) == entry_runs(other, **limits)
        runs, refused = entry_runs(batch, **limits)
        made = queue_entries(other, **limits)
        assert b"".join(run[4] for run in runs) == made.entries
        assert b"".join(run[5] for run in runs) == made.store_times_ms.tobytes()
        assert [[*run[:3], run[3]] for run in runs] == made.runs[:, [0, 1, 2, 4]].tolist()
        assert refused == made.refused.tolist()


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_dispatcher_sees_the_same_columns_of_scanned_records(
    log: WrittenLog, is_delayed: bool
) -> None:
    batch = delays() if is_delayed else log.batches()[0]
    other = parsed(batch)
    for name in (
        "log_offsets", "sizes", "queues", "queue_offsets", "store_times_ms", "transaction_types", "topic_rows",
        "tag_codes",
    ):  # fmt: skip
        assert getattr(batch, name).tolist() == getattr(other, name).tolist(), name
    assert (len(batch), batch.topics) == (len(other), other.topics)
    assert [column.tolist() for column in batch.keys] == [column.tolist() for column in other.keys]
    assert batch.columns.end_offset == other.columns.end_offset == batch.end_offset
    assert batch.columns.last_time_ms == other.columns.last_time_ms
    assert batch.message(len(batch) - 1) == other.message(len(batch) - 1)
    assert batch.columns.are_valid(check_crc=False).all()


def test_a_queue_number_or_offset_out_of_bounds_gets_no_entry(log: WrittenLog) -> None:
    (batch,) = log.batches()
    assert len(queue_entries(batch, queue_max=1, queue_offset_max=1 << 50).refused) == 40
    made = queue_entries(batch, queue_offset_max=5)
    assert (len(made.refused), len(made.entries)) == (120 - 6 * 5, 20 * 6 * 5)


def test_entries_are_split_into_columns_without_a_torn_last_one() -> None:
    rows = np.array([(100, 91, 7), (0, 0x7FFFFFFF, 0), (0, 0, 0), (300, 95, -9)], ENTRY)
    columns, least = split_entries(rows.tobytes() + b"\1" * 19)
    assert columns.log_offsets.tolist()[::3] == [100, 300]
    assert columns.sizes.tolist() == [91, 0, 0, 95]
    assert least == -9


def test_a_key_is_found_in_the_file_that_it_was_added_to(log: WrittenLog) -> None:
    (batch,) = log.batches()
    memory = bytearray(SMALL.index_file_bytes)
    keys = batch.keys
    index_entries.index_file_add(
        memory, SMALL.index_slots, SMALL.index_entries, keys.rows, keys.hashes,
        batch.log_offsets, batch.store_times_ms, 0,
    )  # fmt: skip
    hashed = index_entries.key_hash("topic-1", "only-7")
    found = list(find_in_index_file(bytes(memory), SMALL, hashed, 0, 1 << 62))
    assert int(batch.log_offsets[7]) in found
    assert list(find_in_index_file(bytes(memory), SMALL, hashed, -(1 << 80), 1 << 80)) == found
    assert list(find_in_index_file(bytes(memory), SMALL, hashed, 5, 4)) == []
