"""Batches as dispatchers get them: columns, keys, queue entries and index files, and what hostile ones get."""

import numpy as np
import pytest

from penstock import _kernel
from penstock.contracts import index_entries
from penstock.contracts.dispatcher import DELAY_SECONDS, SCHEDULE_TOPIC, DispatchBatch
from penstock.contracts.index_entries import (
    entry_runs,
    find_in_index_file,
    queue_entries,
)
from penstock.format.columns import RecordColumns, ScannedColumns
from penstock.format.hashes import java_hash
from penstock.format.record import RecordFields, encode_record
from penstock.testing import WrittenLog
from penstock.testing.kit import SMALL
from penstock_index.queue_files import ENTRY, PRE_BLANK


def test_queue_entry_vectors() -> None:
    def entry(offset: int, size: int, code: int) -> str:
        return np.array([(offset, size, code)], ENTRY).tobytes().hex()

    assert entry(174, 174, java_hash("TagA")) == "00000000000000ae000000ae000000000027a807"
    assert entry(348, 174, java_hash("TopicTest")) == "000000000000015c000000aeffffffff8e987641"
    assert PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"


@pytest.mark.parametrize("level", [b"9" * 5000, "\u00b2".encode(), b"-1", b"+3", b"0", b"x", b""])
def test_a_delay_level_that_is_no_number_is_no_level(level: bytes) -> None:
    """A number of 5,000 digits, which Python refuses to read, ended the dispatch of its record."""
    for text, expected in ((level, None), (b"3", 5 + DELAY_SECONDS[2] * 1000)):
        fields = RecordFields(topic=b"SCHEDULE_TOPIC_XXXX", body=b"", store_time_ms=5,
                              properties=b"DELAY\x01" + text + b"\x02")  # fmt: skip
        record = encode_record(fields)
        codes = DispatchBatch(
            RecordColumns.parse(record, [0], 0), 0, len(record)
        ).tag_codes.tolist()
        assert codes == ([0] if expected is None else [expected])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log"), 120)


def parsed(batch: DispatchBatch) -> DispatchBatch:
    """The same records, as columns of numpy that no scan made."""
    columns = batch.columns
    parsed = RecordColumns.parse(columns.window, columns.positions, batch.start_offset)
    return DispatchBatch(parsed, batch.start_offset, batch.end_offset)


@pytest.fixture(params=["plain", "delayed"])
def batch(request: pytest.FixtureRequest, log: WrittenLog) -> DispatchBatch:
    """Scanned records: plain ones, or some of a schedule topic among others."""
    if request.param == "plain":
        (found,) = log.batches()
        return found
    data = b""
    for topic, text in ((b"t", b"TAGS\1a\2"), (SCHEDULE_TOPIC, b"DELAY\x013\2"), (SCHEDULE_TOPIC, b"TAGS\1b\2")):  # fmt: skip
        at = len(data)
        data += encode_record(RecordFields(
            topic=topic, body=b"", properties=text, queue=1, queue_offset=at, log_offset=at,
            store_time_ms=1_700_000_000_000, born_time_ms=1,
        ))  # fmt: skip
    rows, end, _, _ = _kernel.scan(data, 0, 0, b"")
    assert end == len(data)
    return DispatchBatch(ScannedColumns(data, rows, end), 0, end)


def test_runs_of_scanned_records_are_the_entries_of_their_columns(batch: DispatchBatch) -> None:
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


def test_a_dispatcher_sees_the_same_columns_of_scanned_records(batch: DispatchBatch) -> None:
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
