"""Queue entries as evidence about records of the log.

Entries are derived, and have no checksum of their own. So an entry alone never makes a record valid or corrupt;
it decides only between two interpretations of the log that are both possible (see `resync` and `queue_continuity`).
"""

from collections.abc import Iterable

from penstock.contracts import Dispatcher, QueueReader
from penstock.errors import StorageError
from penstock.format.names import topic_of
from penstock.log.segmented_log import SegmentedLog


class EntryWitness:
    """A `Witness` that reads a queue index. Entries that cannot be read are no evidence."""

    def __init__(self, index: QueueReader) -> None:
        self._index = index

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


def use_entries(log: SegmentedLog, dispatchers: Iterable[Dispatcher]) -> None:
    """Set the queue index among these dispatchers as the log's witness."""
    index = next((each for each in dispatchers if isinstance(each, QueueReader)), None)
    log.witness = None if index is None else EntryWitness(index)
