"""Bytes reach a segment by stores into a shared map of it.

What was stored is in the page cache at once: it survives the process, not the machine. The file is
fully allocated first, since a store into a hole kills the process when the disk is full.
"""

from typing import ClassVar

from penstock.columns import Buffer
from penstock.contracts import SegmentChannel, SegmentWriter
from penstock.files import File


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

    def write_batch(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`; many bytes go faster this way too, and the next sync finds them in fewer pieces."""
        self._file.pwrite(data, position)

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
