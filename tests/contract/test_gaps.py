"""`QueueIndex.iter_entries` over queues whose files are missing, and everything that reads through it.

The contract's own implementation follows from `entries` and `resume_at`, so an index of another party needs neither
to know of it nor to have gaps.
"""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.contracts import QueueEntries, QueueIndex, Trust
from penstock.contracts.dispatcher import DispatchBatch
from penstock.message import Message, ReadStatus
from penstock.read.reader import Reader
from penstock.read.spans import QueueSpan
from penstock.store.store import Store
from penstock.testing import make_context
from penstock.testing.kit import SMALL, open_store
from penstock_index.consume_queue import ConsumeQueueDispatcher, ConsumeQueueOptions, entries_within

FILE = SMALL.queue_entries
FILES = 4
# The last one has fewer entries than are looked at in one read at a queue's end.
COUNT = FILES * FILE - 150
# Which of the queue's files are missing.
GAPS = [
    missing
    for size in range(FILES + 1)
    for missing in itertools.combinations(range(FILES), size)
]  # fmt: skip


class Shelves(QueueIndex):
    """An index of one queue in files of ten entries, in memory, as another party might write it."""

    name: ClassVar[str] = "shelves"

    def __init__(self, root: Path, present: set[int], end: int) -> None:
        super().__init__(None, make_context(root))
        self.present, self.end = present, end
        self.asked: list[tuple[int, int]] = []

    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        self.asked.append((start, stop))
        at = start
        while at < min(stop, self.end) and at // 10 in self.present:
            at += 1
        rows = np.arange(start, at)
        return QueueEntries(rows * 100, np.full(len(rows), 100), rows)

    def max_offset(self, topic: str, queue: int) -> int:
        return self.end

    def min_offset(self, topic: str, queue: int) -> int:
        return 0

    def queues(self) -> list[tuple[str, int]]:
        return [("t", 0)]

    def end_log_offset(self) -> int:
        return self.end * 100

    @property
    def progress(self) -> int:
        return self.end * 100

    def load(self, trust: Trust) -> list[str]:
        return []

    def dispatch(self, batch: DispatchBatch) -> None:
        raise NotImplementedError

    def flush(self) -> int:
        return self.progress

    def truncate(self, log_offset: int) -> None:
        raise NotImplementedError

    def trim(self, log_offset: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class ShelvesWithGaps(Shelves):
    """The same, which tells where entries go on."""

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        bases = (number * 10 for number in sorted(self.present) if number * 10 > offset)
        return next(bases, self.end)


def ordinals(index: QueueIndex, start: int, stop: int, chunk: int) -> list[int]:
    found: list[int] = []
    for each in index.iter_entries("t", 0, start, stop, chunk):
        assert 0 < len(each.sizes) <= chunk
        rows = list(range(each.start, each.start + len(each.sizes)))
        assert each.tag_codes.tolist() == rows
        found += rows
    return found


@pytest.mark.parametrize("chunk", [1, 3, 10, 512])
@pytest.mark.parametrize(
    "present", [{0, 1, 2}, {1, 2}, {0, 2}, {0, 1}, {2}, {1}, {0}, set()], ids=str
)
def test_entries_over_gaps(tmp_path: Path, present: set[int], chunk: int) -> None:
    """At the start, in the middle and at the end; from any place to any place, within a gap too."""
    index = ShelvesWithGaps(tmp_path, present, 27)
    for start, stop in itertools.combinations((0, 1, 9, 10, 15, 20, 26, 27, 40), 2):
        expected = [n for n in range(start, min(stop, 27)) if n // 10 in present]
        assert ordinals(index, start, stop, chunk) == expected
    assert ordinals(index, 20, 20, chunk) == ordinals(index, 20, 10, chunk) == []


def test_an_index_without_gaps_need_not_know_of_them(tmp_path: Path) -> None:
    """The default says that nothing follows where `entries` has nothing."""
    assert ordinals(Shelves(tmp_path, {0, 1, 2}, 27), 3, 99, 4) == list(range(3, 27))
    assert ordinals(Shelves(tmp_path, {0, 2}, 27), 0, 27, 4) == list(range(10))


@pytest.mark.parametrize("following", [0, 9, 10, -5])
def test_a_queue_that_was_cut_meanwhile_ends(tmp_path: Path, following: int) -> None:
    """A topic that another process removed while it was read kept its reader going round for ever."""

    class Cut(Shelves):
        def resume_at(self, topic: str, queue: int, offset: int) -> int:
            return following

    index = Cut(tmp_path, {0}, 27)
    assert ordinals(index, 0, 27, 4) == list(range(10))
    assert len(index.asked) == 4


# --- everything that reads through it, on consume queues with missing files


def paths(root: Path) -> list[Path]:
    return [root / "consumequeue" / "t" / "0" / f"{n * FILE * 20:020d}" for n in range(FILES)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gaps") / "s"
    with open_store(root) as store:
        store.put_many(
            [Message("t", b"%d" % n, queue=0, tag="odd" if n % 2 else "even") for n in range(COUNT)]
        )
    assert [path.exists() for path in paths(root)] == [True] * FILES
    return root


@pytest.fixture(params=GAPS, ids=lambda missing: "".join(map(str, missing)) or "none")
def broken(request: Any, whole: Path, tmp_path: Path) -> Iterator[tuple[Store, list[int]]]:
    """Return a store of which files are missing, opened to read, and the ordinals that are left."""
    root = tmp_path / "s"
    shutil.copytree(whole, root)
    left = [path for n, path in enumerate(paths(root)) if n not in request.param]
    for path in set(paths(root)) - set(left):
        path.unlink()
    with open_store(root, read_only=True) as store:
        low, high = store.min_offset("t", 0), store.max_offset("t", 0)
        there = [n for n in range(low, high) if paths(root)[n // FILE] in left]
        assert len(there) == sum(
            COUNT - (FILES - 1) * FILE if path == paths(root)[-1] else FILE for path in left
        )
        yield store, there


def test_every_way_of_reading_gets_what_is_left(broken: tuple[Store, list[int]]) -> None:
    store, there = broken
    assert isinstance(store, Reader)
    bodies = [b"%d" % n for n in there]
    assert [m.body for m in store.scan("t")] == bodies
    assert store.to_arrow("t").column("body").to_pylist() == bodies
    space = store.space(1 << 62)
    assert [(s.topic, s.messages) for s in space] == [("t", len(there))]
    if there:
        middle = there[len(there) // 2]
        time_ms = next(store.scan("t", start=middle)).store_time_ms
        assert store.offset_at("t", 0, (time_ms + 1) / 1000) == store.max_offset("t", 0)
        (bounds,) = store.lowlevel.bounds()
        assert bounds.max_offset == store.max_offset("t", 0)
        last = store.read("t", 0, offset=there[-1]).messages[0]
        assert bounds.last_log_offset == last.log_offset
        # Also those of which a writer elsewhere has said how far everything is in its place.
        (published,) = store.lowlevel.bounds(published=False)
        assert published[:6] == bounds[:6]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tag", ["*", "even || odd", "odd"])
@pytest.mark.parametrize("limit", [1, 16, 64, 1000])
def test_read_goes_on_behind_a_gap(broken: tuple[Store, list[int]], tag: str, limit: int) -> None:
    """It ends at a gap; asked within one, it says where messages go on, as RocketMQ does."""
    store, there = broken
    at, high, found = store.min_offset("t", 0), store.max_offset("t", 0), []
    while at < high:
        result = store.read("t", 0, offset=at, limit=limit, tag=tag)
        is_there = at in set(there)
        assert (result.status is ReadStatus.OFFSET_FOUND_NULL) == (not is_there)
        assert at < result.next_offset <= high
        if not is_there:
            assert result.next_offset == min((n for n in there if n > at), default=high)
        assert len(result.messages) <= limit
        assert {n in there for n in range(at, result.next_offset)} == {is_there}
        found += [int(m.body) for m in result.messages]
        at = result.next_offset
    assert found == [n for n in there if tag != "odd" or n % 2]


def test_spans_tell_of_every_gap(broken: tuple[Store, list[int]]) -> None:
    store, there = broken
    lost: list[int] = []
    high = FILES * FILE
    span = QueueSpan("t", 0, 0, high)
    batches = store.lowlevel.arrow_spans(
        [span], ["queue_offset"], lost=lambda gap, _: lost.extend(range(gap.start, gap.stop))
    )
    found = [n for batch in batches for n in batch.column(0).to_pylist()]
    assert found == there
    assert sorted(found + lost) == list(range(high))


def test_a_rebuild_takes_over_the_entries_behind_a_gap(broken: tuple[Store, list[int]]) -> None:
    """Those of corrupt records, to which RocketMQ's readers go: what came after a missing file was lost."""
    store, there = broken
    index = ConsumeQueueDispatcher(ConsumeQueueOptions(), make_context(store.path, read_only=True))
    found = list(entries_within(index, [(0, 1 << 40)]))
    assert [(topic, queue, ordinal) for topic, queue, ordinal, _ in found] == [
        ("t", 0, ordinal) for ordinal in there
    ]
