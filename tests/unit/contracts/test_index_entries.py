"""Queue entries and index files from batches: the kernel's work on plain buffers, and what hostile ones get."""

import numpy as np
import pytest

from penstock.contracts import index_entries
from penstock.contracts.index_entries import find_in_index_file, queue_entries, split_entries
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
