"""The queries that a consume queue dispatcher answers: which queues there are, and what they hold.

A read-only dispatcher checks the files again at each query: another process may write them. A query first reads the
bounds of up to a hundred thousand queues. So the usual case takes one listing and two reads: the last entries exist,
and the first entry's record is still in the log. All other cases use the slower method (see `queue_state`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.contracts import (
    QUEUE_ENTRY_SIZE,
    Context,
    QueueBounds,
    QueueEntries,
    QueueIndex,
    split_entries,
)
from penstock.files import File
from penstock.format.arrays import np
from penstock.format.names import check_topic, segment_name
from penstock_index.queue_catalog import (
    ClosedQueue,
    Key,
    QueueNames,
    decode_summary,
    differences,
    queue_problem,
    topic_problem,
)
from penstock_index.queue_files import (
    ADDRESS_MAX,
    ENTRY,
    PRE_BLANK_SIZE,
    Entries,
    OpenFiles,
    QueueExtension,
    QueueFolder,
    record_ends,
)
from penstock_index.queue_state import NOWHERE, Queue, QueueTable

# Number of entries read at the end: data ends with a disk block, which has room for 205 of them.
_LAST = 256
_NO_END = 1 << 62


class QuickLook:
    """Reads the bounds of one queue after the other. Not thread-safe."""

    def __init__(self, context: Context, below: int | None) -> None:
        self._files = context.files
        self._file_bytes = context.geometry.queue_file_bytes
        self._log_min = context.log_min_offset()
        self._below = below
        self._removed_before = context.removed_before

    def all_bounds(
        self,
        root: Path,
        wanted: Callable[[str], bool],
        otherwise: Callable[[str, int, int | None], QueueBounds],
    ) -> Iterator[QueueBounds]:
        """Yield the bounds of every queue of the wanted topics; unusual queues are passed to `otherwise`."""
        topics = self._files.folders(str(root)) if self._files.is_folder(root) else []
        for topic in topics:
            if topic_problem(topic):
                continue
            base = f"{root}/{topic}"
            try:
                names = self._files.folders(base) if wanted(topic) else []
            except FileNotFoundError:
                # Another process deletes the topic.
                continue
            numbers = sorted(int(name) for name in names if not queue_problem(name))
            for queue in numbers:
                found = self.bounds(topic, queue, f"{base}/{queue}")
                yield found or otherwise(topic, queue, self._below)

    def bounds(self, topic: str, queue: int, folder: str) -> QueueBounds | None:
        """Return a queue's bounds, or None if the slower method is needed."""
        try:
            found = self._files.numbered(folder)
            if not found:
                return QueueBounds(topic, queue, 0, 0)
            if any(size != self._file_bytes or number % size for number, size in found):
                return None
            return self._read_bounds(topic, queue, folder, [number for number, _ in found])
        except FileNotFoundError:
            # Another process removes files: use the slower method.
            return None

    def _read_bounds(
        self, topic: str, queue: int, folder: str, bases: Sequence[int]
    ) -> QueueBounds | None:
        first, last = bases[0] // QUEUE_ENTRY_SIZE, bases[-1] // QUEUE_ENTRY_SIZE
        with self._files.open(Path(f"{folder}/{segment_name(bases[-1])}")) as file:
            stop = -(-file.data_end() // QUEUE_ENTRY_SIZE)
            start = max(stop - _LAST, 0)
            entries = _read(file, start, stop)
            head = entries[:1] if first == last and start == 0 else None
            if head is None and first == last:
                head = _read(file, 0, 1)
        if head is None:
            with self._files.open(Path(f"{folder}/{segment_name(bases[0])}")) as file:
                head = _read(file, 0, 1)
        sizes = entries["size"].astype(np.int64)
        offsets = entries["log_offset"].astype(np.int64)
        good = (sizes > 0) & (sizes != PRE_BLANK_SIZE)
        if self._below is not None:
            good &= offsets + sizes <= self._below
        present = good.nonzero()[0]
        if not len(present) or not len(head) or not 0 < head["size"][0] < PRE_BLANK_SIZE:
            return None
        at = int(head["log_offset"][0])
        if at < max(self._log_min, self._removed_before(topic), 0):
            return None
        row = int(present[-1])
        if self._below is None and (sizes[row + 1 :] > 0).any():
            # There are pre-blank entries at the end.
            return None
        return QueueBounds(
            topic, queue, first, last + start + row + 1, at, int(offsets[row]),
            int(sizes[present].sum()) / len(present),
        )  # fmt: skip


def _read(file: File, start: int, stop: int) -> Entries:
    """Return the entries [start, stop) of a file, unchecked."""
    data = file.pread((stop - start) * QUEUE_ENTRY_SIZE, start * QUEUE_ENTRY_SIZE)
    return np.frombuffer(data[: len(data) - len(data) % QUEUE_ENTRY_SIZE], ENTRY.dtype)


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
        return self._progress

    def _new_queue(self, topic: str, number: int) -> Queue:
        path = self._root.joinpath(topic, str(number))
        folder = QueueFolder(self._files, self._pool, path, self.context.geometry.queue_entries)
        units = self._extension_root.joinpath(topic, str(number))
        extension = QueueExtension(self._files, self._pool, units)
        return Queue(folder, extension, 0, 0)

    def queues(self) -> list[tuple[str, int]]:
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
        with self._lock:
            return found.min_offset if (found := self._current_queue(topic, queue)) else 0

    def max_offset(self, topic: str, queue: int) -> int:
        with self._lock:
            return found.max_offset if (found := self._current_queue(topic, queue)) else 0

    def ends(self, topic: str, queue: int) -> tuple[int, int]:
        with self._lock:
            found = self._current_queue(topic, queue)
            return (found.min_offset, found.max_offset) if found else (0, 0)

    def reaches(self, topic: str, queue: int, offset: int) -> bool:
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
        if self.context.read_only:
            return QuickLook(self.context, below).all_bounds(self._root, wanted, self.bounds_of)
        return super().bounds(wanted, below)

    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
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
        with self._lock:
            found = self._current_queue(topic, queue)
            if found is None or not 0 <= offset < found.max_offset:
                return None
            log_offset, size = found.folder.entry(offset)
        return (log_offset, size) if 0 < size < PRE_BLANK_SIZE else None

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        """See `QueueIndex`: only a missing file makes a gap, and the next file begins after it."""
        with self._lock:
            if (found := self._current_queue(topic, queue)) is None:
                return 0
            return min((b for b in found.folder.bases if b > offset), default=found.max_offset)

    def end_log_offset(self) -> int:
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
        folders = queue.folder.topic_folder, queue.folder.folder
        try:
            if before is None or not queue.add_appended(log_min):
                if not all(self._files.is_folder(folder) for folder in folders):
                    return None
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
