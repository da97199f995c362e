"""What a dispatcher need not write itself: bounds, ranges over gaps, places, from `entries` alone."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.dispatcher import Dispatcher, QueueBounds, QueueEntries, QueueIndex, Trust
from penstock.testing import make_context


class OneQueue(QueueIndex):
    """A queue index of one queue, from a list of log offsets and sizes; a size of 0 is a missing entry."""

    name: ClassVar[str] = "one-queue"

    def __init__(self, root: Path, rows: list[tuple[int, int]], low: int = 0) -> None:
        super().__init__(None, make_context(root))
        self.rows, self.low = rows, low

    def queues(self) -> list[tuple[str, int]]:
        return [("t", 0)]

    def min_offset(self, topic: str, queue: int) -> int:
        return self.low

    def max_offset(self, topic: str, queue: int) -> int:
        return len(self.rows)

    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        picked = np.array(self.rows[start:stop], np.int64).reshape(-1, 2)
        return QueueEntries(picked[:, 0], picked[:, 1], np.zeros(len(picked), np.int64))

    def end_log_offset(self) -> int:
        return sum(self.rows[-1]) if self.rows else 0

    @property
    def progress(self) -> int:
        return self.end_log_offset()

    def load(self, trust: Trust) -> list[str]:
        return []

    def dispatch(self, batch: DispatchBatch) -> None:
        raise NotImplementedError

    def flush(self) -> int:
        return self.progress

    def truncate(self, log_offset: int) -> None:
        raise NotImplementedError

    def trim(self, log_offset: int) -> None:
        self.low = next(n for n, (at, _) in enumerate(self.rows) if at >= log_offset)

    def close(self) -> None:
        pass


ROWS = [(100 * number, 100) for number in range(300)]


def test_a_dispatcher_that_lacks_a_method_is_not_made(tmp_path: Path) -> None:
    class Half(Dispatcher):
        name = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half(None, make_context(tmp_path))  # type: ignore[abstract] # that is the question


def test_bounds_are_those_of_the_first_and_the_last_entry(tmp_path: Path) -> None:
    found = OneQueue(tmp_path, ROWS, 3).bounds_of("t", 0, None)
    assert found == QueueBounds("t", 0, 3, 300, 300, 29_900, 100.0)


def test_below_a_log_offset_only_records_that_end_there_count(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, ROWS)
    assert index.bounds_of("t", 0, 1000).max_offset == 10
    assert index.bounds_of("t", 0, 999).max_offset == 9
    assert index.bounds_of("t", 0, 0) == QueueBounds("t", 0, 0, 0)


def test_missing_entries_at_the_end_count_but_are_not_the_last_record(tmp_path: Path) -> None:
    """More of them than are looked at in one read."""
    found = OneQueue(tmp_path, ROWS[:10] + [(0, 0)] * 200).bounds_of("t", 0, None)
    assert (found.max_offset, found.last_log_offset, found.record_bytes) == (210, 900, 100.0)


def test_a_queue_without_any_record_has_no_bounds(tmp_path: Path) -> None:
    assert OneQueue(tmp_path, []).bounds_of("t", 0, None) == QueueBounds("t", 0, 0, 0)


def test_bounds_are_given_of_wanted_topics_only(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, ROWS)
    assert [each.topic for each in index.bounds(lambda topic: topic == "t", None)] == ["t"]
    assert not list(index.bounds(lambda topic: topic != "t", None))


def test_a_place_is_that_of_the_entry_and_none_where_it_is_missing(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, [(0, 91), (0, 0), (91, 95)])
    assert [index.place("t", 0, at) for at in range(4)] == [(0, 91), None, (91, 95), None]
    assert index.reaches("t", 0, 3)
    assert not index.reaches("t", 0, 4)


def test_a_bound_is_moved_by_trimming_where_an_index_knows_no_other_way(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, ROWS)
    index.move_min(500)
    assert index.min_offset("t", 0) == 5


def test_what_a_dispatcher_may_leave_out_says_nothing(tmp_path: Path) -> None:
    index = OneQueue(tmp_path, ROWS)
    index.give_back()
    assert (index.closing_summary(), index.checker(), index.strays()) == (None, None, [])
    assert not list(index.compare_summary(b"x"))
