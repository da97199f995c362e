"""Bytes reach a segment by plain writes; readers look at it through a read-only map.

What was written is in the page cache at once: it survives the process, not the machine. A sync after
plain writes is several times cheaper than after stores through a map, where the kernel writes back and
protects again a whole large page for every record.
"""

from typing import ClassVar

from penstock.columns import Buffer
from penstock.contracts import SegmentChannel, SegmentWriter
from penstock.files import File


class FileChannel(SegmentChannel):
    """One segment written by `pwrite`. One writer, many readers."""

    def __init__(self, file: File, capacity: int) -> None:
        self._file = file
        self._view = memoryview(file.map(capacity, writable=False))

    @property
    def view(self) -> memoryview:
        """See `SegmentChannel`."""
        return self._view

    def write(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`."""
        self._file.pwrite(data, position)

    def commit(self) -> None:
        """Nothing to do: what is written is in the page cache."""

    def flush(self) -> None:
        """See `SegmentChannel`."""
        self._file.sync()

    def close(self) -> None:
        """Close the descriptor; the map goes when the last reader's view does."""
        self._file.close()


class FileWriter(SegmentWriter):
    """Writes through the descriptor. Best with `sync`; a system call for each message otherwise."""

    name: ClassVar[str] = "file"
    needs_allocated_file: ClassVar[bool] = True
    commits_at_once: ClassVar[bool] = True

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """See `SegmentWriter`."""
        return FileChannel(file, capacity)
