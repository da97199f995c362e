"""Queue entries as evidence about records of the log.

Entries are derived, and have no checksum of their own. So an entry alone never makes a record valid or corrupt;
it decides only between two interpretations of the log that are both possible (see `resync` and `queue_continuity`).
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.contracts import Dispatcher, QueueReader
from penstock.errors import StorageError
from penstock.format.names import topic_of
from penstock.log.record_reader import is_shared
from penstock.log.segmented_log import SegmentedLog, Witness

# So many messages of a corrupt range are named.
_NAMED = 3
# In so many queues is searched for them: each search takes some reads.
_SEARCHES_MAX = 100_000


class EntryWitness:
    """A `Witness` that reads a queue index. Entries that cannot be read are no evidence."""

    def __init__(self, index: QueueReader) -> None:
        self._index = index
        self._searches_left = _SEARCHES_MAX

    def place(self, topic: bytes, queue: int, queue_offset: int) -> tuple[int, int] | None:
        """See `Witness`."""
        name = topic_of(topic)
        if name is None or queue < 0 or queue_offset < 0:
            return None
        try:
            return self._index.place(name, queue, queue_offset)
        except (OSError, StorageError):
            return None

    def end(self, topic: bytes, queue: int) -> int:
        """See `Witness`."""
        name = topic_of(topic)
        if name is None or queue < 0:
            return 0
        try:
            return self._index.max_offset(name, queue)
        except (OSError, StorageError):
            return 0

    def within(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """See `Witness`."""
        for topic, queue in self._index.queues():
            self._searches_left -= 1
            if self._searches_left < 0 or is_shared(topic):
                continue
            key = topic.encode(), queue
            ordinal = end_before(self, key, start)
            while (place := self.place(*key, ordinal)) is not None and start <= place[0] < stop:
                yield topic, queue, ordinal
                ordinal += 1


def use_entries(log: SegmentedLog, dispatchers: Iterable[Dispatcher]) -> None:
    """Set the queue index among these dispatchers as the log's witness."""
    index = next((each for each in dispatchers if isinstance(each, QueueReader)), None)
    log.witness = None if index is None else EntryWitness(index)


def end_before(witness: Witness, queue: tuple[bytes, int], log_offset: int) -> int:
    """Return the queue offset after the last entry of a record before `log_offset`; entries are in ascending order."""

    def is_before(ordinal: int) -> bool:
        place = witness.place(*queue, ordinal)
        return place is not None and place[0] < log_offset

    low = high = witness.end(*queue)
    step = 1
    while low > 0 and not is_before(low - 1):
        high = low - 1
        low, step = max(low - step, 0), step * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if is_before(middle) else (low, middle)
    return low


def messages_within(log: SegmentedLog, start: int, stop: int) -> str:
    """Return the messages whose entries point into a corrupt range, in parentheses; empty if there are none."""
    found = () if log.witness is None else log.witness.within(start, stop)
    names = [
        f"{topic}, queue {queue}, offset {at}" for topic, queue, at in islice(found, _NAMED + 1)
    ]
    names[_NAMED:] = ["and others"] if len(names) > _NAMED else []
    return f" ({'; '.join(names)})" if names else ""
