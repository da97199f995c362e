"""Bytes reach a segment by stores into a shared map of it.

What was stored is in the page cache at once: it survives the process, not the machine. A store into a hole kills the
process when the disk is full, so blocks are allocated ahead of it, in steps, and where no put waits for a sync zeros are
written ahead as well (see `penstock.files.blocks`). Where blocks do not fill a whole unit of the page cache yet, as in a store
that is written slowly, bytes go by plain writes.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.contracts import Context, SegmentChannel, SegmentWriter, store_records
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.columns import Buffer

_FEW = 256
# Pages are unmapped behind the append position, at least so many bytes at once.
_UNMAPPED_BYTES = 64 << 10
# At most so many bytes are stored before blocks are prepared, and pages unmapped, again.
_READY_BYTES = 256 << 10


class MmapChannel(SegmentChannel):
    """One mapped segment. One writer, many readers."""

    def __init__(self, file: File, capacity: int, blocks: Blocks | None = None) -> None:
        """Write to a file of a capacity in bytes; `blocks` are what it has, else all of it is taken to be unwritten."""
        self._file = file
        self._blocks = blocks or Blocks(file, capacity, 0, mapped=True)
        # Stores up to here need nothing prepared.
        self._ready_end = 0
        # Pages before it were unmapped after they were stored into.
        self._unmapped_end = self._blocks.begin
        self._map = file.map_from(capacity, self._blocks.begin)
        self._view = memoryview(self._map)

    @property
    def view(self) -> memoryview:
        """See `SegmentChannel`."""
        return self._view.toreadonly()

    @property
    def memory(self) -> memoryview:
        """See `SegmentChannel`."""
        return self._view

    @property
    def memory_end(self) -> int:
        """See `SegmentChannel`."""
        return self._ready_end

    @property
    def descriptor(self) -> int | None:
        """See `SegmentChannel`."""
        return self._file.descriptor

    def write(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`."""
        if self._may_store(position, position + len(data)):
            store_records(self._view, position, data, (len(data),))
        else:
            self._file.pwrite(data, position)

    def write_batch(self, position: int, data: Buffer, sizes: Sequence[int]) -> None:
        """See `SegmentChannel`. Many bytes go faster to the file, and the next sync finds them in fewer pieces.

        A few go record by record: a call of the system gives the interpreter to other threads, within the append lock.
        """
        stop = position + len(data)
        if not 0 < len(sizes) <= _FEW:
            self._blocks.reserve(stop)
            self._file.pwrite(data, position)
        elif self._may_store(position, stop):
            store_records(self._view, position, data, sizes)
        else:
            self._file.pwrite(data, position)

    def _may_store(self, position: int, stop: int) -> bool:
        """Prepare the file for bytes [position, stop), the next ones; says whether they may go through the map."""
        if stop <= self._ready_end:
            return True
        ready_end = self._blocks.prepare(position, stop)
        # A sync may set it back in between.
        self._ready_end = min(ready_end, stop + _READY_BYTES)
        if position - self._unmapped_end >= _UNMAPPED_BYTES:
            # Spares the next sync what it does for each page that is mapped.
            self._file.unmap_pages(self._map, self._unmapped_end, position)
            self._unmapped_end = position
        return stop <= ready_end

    def reserve(self, stop: int) -> None:
        """See `SegmentChannel`."""
        self._blocks.reserve(stop)

    def give_back(self, stop: int) -> None:
        """See `SegmentChannel`."""
        if self._blocks.give_back(stop):
            self._file.sync()

    def commit(self) -> None:
        """Nothing to do: what is stored is in the page cache."""

    def flush(self) -> None:
        """Sync by the descriptor, which covers mapped pages and, unlike msync here, frees the GIL."""
        self._file.sync()
        self.synced()

    def synced(self) -> None:
        """See `SegmentChannel`."""
        self._blocks.note_sync()
        # The next store asks again.
        self._ready_end = 0

    def close(self) -> None:
        """Close the descriptor; the map goes when the last reader's view does."""
        self._file.close()


class MmapWriter(SegmentWriter):
    """Writes through a map. Fastest for single messages; a sync costs more than after plain writes."""

    name: ClassVar[str] = "mmap"
    capabilities: ClassVar[frozenset[str]] = frozenset({"mapped"})
    needs_allocated_file: ClassVar[bool] = False
    commits_at_once: bool = True

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._blocks: Blocks | None = None

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """See `SegmentWriter`."""
        clock = self.context.clock
        self._blocks = blocks = Blocks(
            file, capacity, position, clock.monotonic_ms,
            mapped=True, zeroes=not self.context.appenders_wait, after=self._blocks,
        )  # fmt: skip
        return MmapChannel(file, capacity, blocks)
