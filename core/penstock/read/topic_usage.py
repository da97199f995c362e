"""Space by topic: messages and bytes of each topic, from the queues' entries alone."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.contracts import QueueReader
from penstock.format.arrays import np

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
