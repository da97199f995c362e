"""The queries that a consume queue dispatcher answers: which queues there are, and what they hold.

A read-only dispatcher checks the files again at each query: another process may write them.
"""

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock.contracts import (
    QUEUE_ENTRY_SIZE,
    Context,
    QueueBounds,
    QueueEntries,
    QueueIndex,
    split_entries,
)
from penstock.format.arrays import np
from penstock.format.names import check_topic
from penstock_index.queue_bounds import QuickLook
from penstock_index.queue_claims import Key
from penstock_index.queue_extension import ADDRESS_MAX, QueueExtension
from penstock_index.queue_files import PRE_BLANK_SIZE, OpenFiles, QueueFolder, record_ends
from penstock_index.queue_names import QueueNames
from penstock_index.queue_state import NOWHERE, Queue
from penstock_index.queue_summary import ClosedQueue, decode_summary, differences
from penstock_index.queue_table import QueueTable

# Log offset and size, at the beginning of an entry.
_PLACE = struct.Struct(">qi")
_NO_END = 1 << 62


class QueueLookUp(QueueIndex):
    """The reading half of the consume queues. Safe from any thread; one lock guards all state."""

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._files = context.files
        self._root = context.root / "consumequeue"
        self._extension_root = context.root / "consumequeue_ext"
        self._names = QueueNames(context.files, self._root, read_only=context.read_only)
        self._pool = OpenFiles(context.files, options.open_files_max)
        self._pool.read_only = context.read_only
        self._queues = QueueTable()
        self._lock = threading.RLock()
        self._progress = 0

    @property
    def progress(self) -> int:
        """See `Dispatcher`."""
        return self._progress

    def _new_queue(self, topic: str, number: int) -> Queue:
        path = self._root.joinpath(topic, str(number))
        folder = QueueFolder(self._files, self._pool, path, self.context.geometry.queue_entries)
        units = self._extension_root.joinpath(topic, str(number))
        extension = QueueExtension(self._files, self._pool, units)
        return Queue(folder, extension, 0, 0)

    def queues(self) -> list[tuple[str, int]]:
        """See `QueueIndex`."""
        if self.context.read_only:
            removed_before = self.context.removed_before
            with self._lock:
                return sorted(
                    (topic, number)
                    for topic, number in self._names.folders()
                    if not removed_before(topic) or self._current_queue(topic, number) is not None
                )
        with self._lock:
            return sorted(self._queues)

    def min_offset(self, topic: str, queue: int) -> int:
        """See `QueueIndex`."""
        with self._lock:
            return found.min_offset if (found := self._current_queue(topic, queue)) else 0

    def max_offset(self, topic: str, queue: int) -> int:
        """See `QueueIndex`."""
        with self._lock:
            return found.max_offset if (found := self._current_queue(topic, queue)) else 0

    def ends(self, topic: str, queue: int) -> tuple[int, int]:
        """See `QueueIndex`."""
        with self._lock:
            found = self._current_queue(topic, queue)
            return (found.min_offset, found.max_offset) if found else (0, 0)

    def reaches(self, topic: str, queue: int, offset: int) -> bool:
        """See `QueueIndex`."""
        with self._lock:
            known = self._queues.unopened((topic, queue))
            return (known is not None and offset <= known.max_offset) or (
                offset <= self.max_offset(topic, queue)
            )

    def compare_summary(self, summary: bytes) -> Iterator[str]:
        """See `Dispatcher`; called on a read-only dispatcher."""
        recorded = decode_summary(summary, self.context.geometry.queue_entries, _NO_END)
        if recorded is None:
            yield "the part about queues cannot be decoded"
            return
        with self._lock:
            yield from differences(recorded, self._list_known())

    def _list_known(self) -> Iterator[tuple[Key, ClosedQueue]]:
        for topic, number in self.queues():
            if (queue := self._current_queue(topic, number)) is not None:
                yield (topic, number), queue.known()

    def bounds(self, wanted: Callable[[str], bool], below: int | None) -> Iterator[QueueBounds]:
        """See `QueueIndex`."""
        if self.context.read_only:
            return QuickLook(self.context, below).all_bounds(self._root, wanted, self.bounds_of)
        return super().bounds(wanted, below)

    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """See `QueueIndex`."""
        with self._lock:
            found = self._current_queue(topic, queue)
            if found is None:
                return QueueEntries(*(np.zeros(0, np.int64) for _ in range(3)))
            read = found.folder.read(start, min(stop, found.max_offset))
            entries, least_code = split_entries(read.data)
            if least_code <= ADDRESS_MAX:
                found.extension.resolve(entries.tag_codes)
        return entries

    def place(self, topic: str, queue: int, offset: int) -> tuple[int, int] | None:
        """See `QueueIndex`."""
        with self._lock:
            found = self._current_queue(topic, queue)
            if found is None or not 0 <= offset < found.max_offset:
                return None
            folder = found.folder
            base = folder.file_base(offset)
            position = QUEUE_ENTRY_SIZE * (offset - base)
            data = self._pool.read(folder.path(base), _PLACE.size, position)
        if len(data) < _PLACE.size:
            return None
        log_offset, size = _PLACE.unpack(data)
        return (log_offset, size) if 0 < size < PRE_BLANK_SIZE else None

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        """See `QueueIndex`: only a missing file makes a gap, and the next file begins after it."""
        with self._lock:
            if (found := self._current_queue(topic, queue)) is None:
                return 0
            return min((b for b in found.folder.bases if b > offset), default=found.max_offset)

    def end_log_offset(self) -> int:
        """See `QueueIndex`."""
        with self._lock:
            if not self.context.read_only:
                return self._progress
            return max((self._end_of(topic, number) for topic, number in self.queues()), default=0)

    def _end_of(self, topic: str, number: int) -> int:
        if (queue := self._current_queue(topic, number)) is None:
            return 0
        low = max(queue.max_offset - 8, queue.min_offset)  # the last few: one may be corrupt
        return max(record_ends(queue.folder.read_bytes(low, queue.max_offset)), default=0)

    def _current_queue(self, topic: str, number: int) -> Queue | None:
        before = self._queues.get((topic, number))
        if not self.context.read_only:
            if before is None:
                self._names.check_free(topic, number)
            return before
        # Check the files again: another process may have written them.
        if before is None:
            check_topic(topic)
        queue, log_min = before or self._new_queue(topic, number), self.context.log_min_offset()
        folder = queue.folder
        if not (self._files.is_folder(folder.topic_folder) and self._files.is_folder(folder.folder)):  # fmt: skip
            return None
        try:
            if before is None or not queue.add_appended(log_min):
                queue.reload(log_min)
                self._queues[topic, number] = queue
        except FileNotFoundError:
            # Removed with its topic since the look at its folder.
            return None
        return None if self._is_removed(topic, queue) else queue

    def _is_removed(self, topic: str, queue: Queue) -> bool:
        """Return whether the process that writes is about to remove a queue's files, and the queue is no more."""
        before = self.context.removed_before(topic)
        if not before:
            return False
        bases = queue.folder.bases
        _, log_offset = queue.next_entry(bases[0]) if bases else (0, -1)
        # One without entries, too: the name of an old file would give its end.
        return log_offset < before or log_offset == NOWHERE
