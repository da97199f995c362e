"""Bytes reach a segment by stores into a shared map of it.

What was stored is in the page cache at once: it survives the process, not the machine. The file is
fully allocated first, since a store into a hole kills the process when the disk is full.
"""

from typing import ClassVar

import numpy as np

from penstock.columns import Buffer
from penstock.contracts import SegmentChannel, SegmentWriter
from penstock.files import File

# From this size on the copy is made by numpy, which lets other threads run meanwhile.
_LARGE_BYTES = 64 << 10


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
        stop = position + len(data)
        if len(data) < _LARGE_BYTES:
            self._map[position:stop] = data
        else:
            np.copyto(
                np.frombuffer(self._view[position:stop], np.uint8), np.frombuffer(data, np.uint8)
            )

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
