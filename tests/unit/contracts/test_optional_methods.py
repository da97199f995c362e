"""What a dispatcher, a channel, a writer or an allocator may leave out, and what then holds."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from penstock.contracts.dispatcher import (
    Checker,
    DispatchBatch,
    Finding,
    QueueBounds,
    QueueEntries,
    QueueIndex,
    Trust,
)
from penstock.contracts.strategies import SegmentChannel
from penstock.format.columns import Buffer
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


@pytest.mark.parametrize(
    ("rows", "low", "below", "expected"),
    [
        (ROWS, 3, None, QueueBounds("t", 0, 3, 300, 300, 29_900, 100.0)),
        # Only records that end there count.
        (ROWS, 0, 1000, QueueBounds("t", 0, 0, 10, 0, 900, 100.0)),
        (ROWS, 0, 999, QueueBounds("t", 0, 0, 9, 0, 800, 100.0)),
        (ROWS, 0, 0, QueueBounds("t", 0, 0, 0)),
        # Missing entries at the end count, and are not the last record; they are more than one read looks at.
        (ROWS[:10] + [(0, 0)] * 200, 0, None, QueueBounds("t", 0, 0, 210, 0, 900, 100.0)),
        ([], 0, None, QueueBounds("t", 0, 0, 0)),
    ],
)  # fmt: skip
def test_bounds_are_those_of_the_first_and_the_last_entry(
    tmp_path: Path, rows: list[tuple[int, int]], low: int, below: int | None, expected: QueueBounds
) -> None:
    index = OneQueue(tmp_path, rows, low)
    assert index.bounds_of("t", 0, below) == expected
    assert list(index.bounds(lambda topic: topic == "t", below)) == [expected]
    assert not list(index.bounds(lambda topic: topic != "t", below))


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


# --- channels, writers and allocators


class Plain(SegmentChannel):
    """A channel with no more than it must have, onto memory."""

    def __init__(self) -> None:
        self.memory_of_file = bytearray(100)

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory_of_file).toreadonly()

    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        self.memory_of_file[position : position + len(data)] = data

    def commit(self, stop: int) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_channel_lends_nothing_unless_it_says_so() -> None:
    """Neither memory nor a descriptor: whoever stores or syncs past its methods would miss what they do."""
    channel = Plain()
    lent = (channel.blocks, channel.buffer, channel.buffer_end, channel.descriptor)
    assert lent == (None, None, 0, None)
    channel.synced()
    assert bytes(channel.view) == bytes(100)


# --- checkers


class Least(Checker):
    """A checker with no more than it must have."""

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        yield from ()

    def finish(self, end: int) -> Iterator[Finding]:
        yield Finding("mine", Path("x"), -1, end, "the end")


def test_a_checker_needs_only_batches_and_an_end() -> None:
    checker = Least()
    checker.damage(0, 10)
    checker.take(checker.seen())
    assert not list(checker.start())
    assert [each.log_offset for each in checker.finish(7)] == [7]
    assert not checker.is_splittable
