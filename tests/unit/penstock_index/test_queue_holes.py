"""Entries that are missing are found without a walk over the log; entries of damage are kept."""

from pathlib import Path

import pytest
from tests.unit.contracts.test_dispatcher import OneQueue
from tests.unit.penstock_index.test_consume_queue import filled

from penstock.contracts import DispatchBatch
from penstock.testing import WrittenLog
from penstock_index.queue_files import ENTRY
from penstock_index.queue_holes import entries_within, first_hole, valid_end


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return WrittenLog(tmp_path_factory.mktemp("log") / "s", 300)


def first_record(batch: DispatchBatch) -> int | None:
    return int(batch.log_offsets[0]) if len(batch) else None


def test_where_entries_tile_the_log_there_is_no_hole(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    queues = list(made._queues.values())
    assert first_hole(queues, log.view, log.end_offset, first_record) is None


def test_the_first_record_without_an_entry_is_found(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    queue = made._queues["topic-1", 1]
    (hole, _) = made.place("topic-1", 1, 5) or (0, 0)
    list(queue.folder.write(5, bytes(20)))
    queues = list(made._queues.values())
    assert first_hole(queues, log.view, log.end_offset, first_record) == hole
    assert first_hole(queues, log.view, hole, first_record) is None, "it was not durable"
    assert first_hole(queues, log.view, log.end_offset, lambda _: None) is None, "it needs none"


def test_an_entry_that_a_power_cut_tore_is_not_the_end(log: WrittenLog, tmp_path: Path) -> None:
    made = filled(log, tmp_path)
    queue = made._queues["topic-1", 1]
    end = queue.max_offset
    assert valid_end(queue, log.view, 0) == end
    list(queue.folder.write(end - 1, b"\0\0\0\0\0\0\0\7\0\0\0\7" + bytes(8)))
    assert valid_end(queue, log.view, 1) == end - 1


def test_entries_within_damage_are_kept_and_the_last_of_an_empty_queue(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, [(0, 100), (100, 100), (200, 100)])
    kept = list(entries_within(index, [(100, 250)]))
    assert [(topic, queue, at) for topic, queue, at, _ in kept] == [("t", 0, 1)]
    assert len(kept[0][3]) == ENTRY.itemsize
    index.low = 3
    assert [at for _, _, at, _ in entries_within(index, [])] == [2]
