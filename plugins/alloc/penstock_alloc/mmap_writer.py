"""Bytes reach a segment by stores into a shared map of it.

What was stored is in the page cache at once: it survives the process, not the machine. The file is
fully allocated first, since a store into a hole kills the process when the disk is full.
"""

from collections.abc import Sequence
from typing import ClassVar

from penstock.columns import Buffer
from penstock.contracts import SegmentChannel, SegmentWriter
from penstock.files import File

_FEW = 256


class MmapChannel(SegmentChannel):
    """One mapped segment. One writer, many readers."""

    def __init__(self, file: File, capacity: int) -> None:
        self._file = file
        self._map = file.map(capacity, writable=True)
        self._view = memoryview(self._map)

    @property
    def view(self) -> memoryview:
        """See `SegmentChannel`."""
        return self._view.toreadonly()

    def write(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`."""
        self._map[position : position + len(data)] = data

    def write_batch(self, position: int, data: Buffer, sizes: Sequence[int]) -> None:
        """See `SegmentChannel`. Many bytes go faster to the file, and the next sync finds them in fewer pieces.

        A few go record by record: a call of the system gives the interpreter to other threads, within the append lock.
        """
        if not 0 < len(sizes) <= _FEW:
            self._file.pwrite(data, position)
            return
        records, start = memoryview(data), 0
        for size in sizes:
            stop = start + size
            self._map[position + start : position + stop] = records[start:stop]
            start = stop

    def commit(self) -> None:
        """Nothing to do: what is stored is in the page cache."""

    def flush(self) -> None:
        """Sync by the descriptor, which covers mapped pages and, unlike msync here, frees the GIL."""
        self._file.sync()

    def close(self) -> None:
        """Close the descriptor; the map goes when the last reader's view does."""
        self._file.close()


class MmapWriter(SegmentWriter):
    """Writes through a map. Fastest for single messages; a sync costs more than after plain writes."""

    name: ClassVar[str] = "mmap"
    capabilities: ClassVar[frozenset[str]] = frozenset({"mapped"})
    needs_allocated_file: ClassVar[bool] = True
    commits_at_once: bool = True

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """See `SegmentWriter`."""
        return MmapChannel(file, capacity)
