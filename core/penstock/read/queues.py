"""The queue index for readers, in which no queue that is not understood looks empty; and the space of topics.

Readers do not see the entries of hidden records either; see `recovery.inspection`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.contracts import QueueBounds, QueueEntries, QueueReader
from penstock.contracts.foreign import BATCH_QUEUES, ROCKSDB_QUEUES, Foreign
from penstock.errors import ForeignContentError
from penstock.format.arrays import np
from penstock.log.segmented_log import SegmentedLog

# Entries that are read at once, from a queue's end backwards.
_CHUNK = 512


def served(
    index: QueueReader, log: SegmentedLog, root: Path, found: Sequence[Foreign]
) -> QueueReader:
    """Return the queue index for readers, without hidden records; it raises for queues that are not understood.

    Args:
        index: the queues, opened read-only.
        log: the log, which knows what is hidden.
        root: the store's folder.
        found: the content that is not understood.
    """
    batch = tuple(each for each in found if each.kind is BATCH_QUEUES)
    elsewhere = tuple(each for each in found if each.kind is ROCKSDB_QUEUES)
    # A database in its own folder is written in addition to the queue files. A database in the folder of the
    # queue files has replaced them, and the remaining files may be outdated.
    if elsewhere and all(each.path.name != "consumequeue" for each in elsewhere) and index.queues():
        elsewhere = ()
    if batch or elsewhere or log.hidden_from is not None:
        return ServedQueues(index, log, root, batch, elsewhere)
    return index


def has_queues(index: QueueReader) -> bool:
    """Return whether the queues of the directory can be read; False if they are in a database instead."""
    return not (isinstance(index, ServedQueues) and index.is_elsewhere)


class ServedQueues(QueueReader):
    """A read-only queue index without the entries of hidden records, which raises for queues that are not understood.

    As thread-safe as the wrapped index.
    """

    def __init__(
        self,
        index: QueueReader,
        log: SegmentedLog,
        root: Path,
        batch: tuple[Foreign, ...],
        elsewhere: tuple[Foreign, ...],
    ) -> None:
        self._index = index
        self._log = log
        self._root = root
        self._batch = batch
        self._elsewhere = elsewhere
        self._refused = frozenset(name for each in batch for name in each.names)

    @property
    def is_elsewhere(self) -> bool:
        """Whether no queue can be read, since the directory's queues are in another format."""
        return bool(self._elsewhere)

    def _check(self, topic: str | None = None) -> None:
        if self._elsewhere:
            raise self._error("queues cannot be read", self._elsewhere)
        if topic in self._refused:
            raise self._error(f"topic {topic!r} cannot be read", self._batch)

    def _error(self, what: str, found: tuple[Foreign, ...]) -> ForeignContentError:
        return ForeignContentError(
            self._root, what, [(each.kind.name, each.text) for each in found]
        )

    def _begin(self) -> int | None:
        """Return the log offset from which records are hidden; None if none are."""
        hidden = self._log.hidden_from
        return None if hidden is None else hidden()

    def queues(self) -> list[tuple[str, int]]:
        """See `QueueReader`; without the topics that cannot be read, but with queues that only have hidden records."""
        self._check()
        return [place for place in self._index.queues() if place[0] not in self._refused]

    def min_offset(self, topic: str, queue: int) -> int:
        self._check(topic)
        return self._index.min_offset(topic, queue)

    def max_offset(self, topic: str, queue: int) -> int:
        self._check(topic)
        begin = self._begin()
        low, high = self._index.ends(topic, queue)
        if begin is None:
            return high
        while high > low:
            start = max(high - _CHUNK, low)
            offsets, sizes, _ = self._index.entries(topic, queue, start, high)
            shown = ((sizes > 0) & (offsets < begin)).nonzero()[0]
            if len(shown):
                return start + int(shown[-1]) + 1
            if not (sizes > 0).any():
                # Nothing is known of these places, and nothing is hidden.
                return high
            high = start
        return high

    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        return self._index.entries(topic, queue, start, min(stop, self.max_offset(topic, queue)))

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        end = self.max_offset(topic, queue)
        return min(self._index.resume_at(topic, queue, offset), end)

    def bounds(self, wanted: Callable[[str], bool], below: int | None) -> Iterator[QueueBounds]:
        self._check()
        begin = self._begin()
        if begin is not None:
            below = begin if below is None else min(below, begin)
        known = lambda topic: topic not in self._refused and wanted(topic)  # noqa: E731 - a predicate
        found = list(self._index.bounds(known, below))
        if not found:
            # If only such topics are requested, raise instead of returning nothing.
            for topic in filter(wanted, self._refused):
                self._check(topic)
        return iter(found)

    def end_log_offset(self) -> int:
        self._check()
        begin, end = self._begin(), self._index.end_log_offset()
        return end if begin is None else min(begin, end)

    def close(self) -> None:
        self._index.close()


_ENTRIES_AT_ONCE = 1 << 20


class TopicSpace(NamedTuple):
    """The log space that one topic uses.

    Attributes:
        topic: the topic.
        messages: number of records that its queues point to.
        size: the size of these records in bytes.
        size_below: the size in bytes of those before the given log offset.
    """

    topic: str
    messages: int
    size: int
    size_below: int


def space_by_topic(
    index: QueueReader, below: int, on_progress: Callable[[int], None]
) -> list[TopicSpace]:
    """Return the log space of each topic, the largest first; see `Store.space`."""
    found: dict[str, TopicSpace] = {}
    for done, (topic, queue) in enumerate(index.queues(), 1):
        so_far = found.get(topic, TopicSpace(topic, 0, 0, 0))
        found[topic] = _add_queue(index, so_far, queue, below)
        on_progress(done)
    return sorted(found.values(), key=lambda space: -space.size)


def _add_queue(index: QueueReader, space: TopicSpace, queue: int, below: int) -> TopicSpace:
    topic, messages, size, size_below = space
    low, high = index.min_offset(topic, queue), index.max_offset(topic, queue)
    for entries in index.iter_entries(topic, queue, low, high, _ENTRIES_AT_ONCE):
        messages += int(np.count_nonzero(entries.sizes))
        size += int(entries.sizes.sum())
        size_below += int(entries.sizes[entries.log_offsets < below].sum())
    return TopicSpace(topic, messages, size, size_below)
