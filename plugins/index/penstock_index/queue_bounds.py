"""Finds the readable bounds of the queues of a store that another process may write, with few system calls.

A query first reads the bounds of up to a hundred thousand queues. So the usual case takes one listing and two reads:
the last entries exist, and the first entry's record is still in the log. All other cases use the slower method (see
`queue_state`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import QUEUE_ENTRY_SIZE, Context, QueueBounds
from penstock.files import File
from penstock.format.arrays import np
from penstock.format.names import segment_name
from penstock_index.queue_files import ENTRY, PRE_BLANK_SIZE, Entries
from penstock_index.queue_names import queue_problem, topic_problem

# Number of entries read at the end: data ends with a disk block, which has room for 205 of them.
_LAST = 256


LongWay = Callable[[str, int, int | None], QueueBounds]


class QuickLook:
    """Reads the bounds of one queue after the other. Not thread-safe."""

    def __init__(self, context: Context, below: int | None) -> None:
        self._files = context.files
        self._file_bytes = context.geometry.queue_file_bytes
        self._log_min = context.log_min_offset()
        self._below = below
        self._removed_before = context.removed_before

    def all_bounds(
        self, root: Path, wanted: Callable[[str], bool], otherwise: LongWay
    ) -> Iterator[QueueBounds]:
        """Yield the bounds of every queue of the wanted topics; unusual queues are passed to `otherwise`."""
        topics = self._files.folders(str(root)) if self._files.is_folder(root) else []
        for topic in topics:
            if topic_problem(topic):
                continue
            base = f"{root}/{topic}"
            names = self._files.folders(base) if wanted(topic) else []
            numbers = sorted(int(name) for name in names if not queue_problem(name))
            for queue in numbers:
                found = self.bounds(topic, queue, f"{base}/{queue}")
                yield found or otherwise(topic, queue, self._below)

    def bounds(self, topic: str, queue: int, folder: str) -> QueueBounds | None:
        """Return a queue's bounds, or None if the slower method is needed."""
        found = self._files.numbered(folder)
        if not found:
            return QueueBounds(topic, queue, 0, 0)
        if any(size != self._file_bytes or number % size for number, size in found):
            return None
        try:
            return self._read_bounds(topic, queue, folder, [number for number, _ in found])
        except FileNotFoundError:
            # Another process removes files: use the slower method.
            return None

    def _read_bounds(
        self, topic: str, queue: int, folder: str, bases: Sequence[int]
    ) -> QueueBounds | None:
        first, last = bases[0] // QUEUE_ENTRY_SIZE, bases[-1] // QUEUE_ENTRY_SIZE
        file = self._files.open(Path(f"{folder}/{segment_name(bases[-1])}"))
        try:
            stop = -(-file.data_end() // QUEUE_ENTRY_SIZE)
            start = max(stop - _LAST, 0)
            entries = _read(file, start, stop)
            head = entries[:1] if first == last and start == 0 else None
            if head is None and first == last:
                head = _read(file, 0, 1)
        finally:
            file.close()
        if head is None:
            head = self._first_of(Path(f"{folder}/{segment_name(bases[0])}"))
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

    def _first_of(self, path: Path) -> Entries:
        file = self._files.open(path)
        try:
            return _read(file, 0, 1)
        finally:
            file.close()


def _read(file: File, start: int, stop: int) -> Entries:
    """Return the entries [start, stop) of a file, unchecked."""
    data = file.pread((stop - start) * QUEUE_ENTRY_SIZE, start * QUEUE_ENTRY_SIZE)
    return np.frombuffer(data[: len(data) - len(data) % QUEUE_ENTRY_SIZE], ENTRY.dtype)
