"""The `mmap` writer: stores into a shared map of the segment.

Stored bytes are in the page cache at once: they survive a crash of the process, not of the machine. A memory write into a
hole kills the process if the disk is full. So blocks are allocated ahead of the append position, in steps; if no put
waits for a sync, zeros are written ahead as well (see `penstock.files.blocks`). As long as the blocks do not fill a
whole unit of the page cache, as in a store that is written slowly, bytes are written with plain writes.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.contracts import Context, SegmentChannel, SegmentWriter, store_records
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.columns import Buffer

_STORED_RECORDS_MAX = 256
# Pages before the append position are unmapped in steps of at least this size.
_UNMAPPED_BYTES = 64 << 10
# Maximum size of stores before the next call that prepares blocks and unmaps pages.
_READY_BYTES = 256 << 10


class MmapChannel(SegmentChannel):
    """One mapped segment. One writer, many readers."""

    def __init__(self, file: File, capacity: int, blocks: Blocks | None = None) -> None:
        """Write to a file of `capacity` bytes; `blocks` allocates its blocks, None if nothing was written to it yet."""
        self._file = file
        self._blocks = blocks or Blocks(file, capacity, 0, mapped=True)
        # End of the range in which stores need no preparation.
        self._ready_end = 0
        # Pages before this position have been unmapped after their stores.
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
        """See `SegmentChannel`. A large batch is written to the file: faster, and the next sync finds fewer ranges.

        A small batch is stored record by record: a system call would release the GIL within the append lock.
        """
        stop = position + len(data)
        if not 0 < len(sizes) <= _STORED_RECORDS_MAX:
            self._blocks.reserve(stop)
            self._file.pwrite(data, position)
        elif self._may_store(position, stop):
            store_records(self._view, position, data, sizes)
        else:
            self._file.pwrite(data, position)

    def _may_store(self, position: int, stop: int) -> bool:
        """Prepare the file for bytes [position, stop), the next ones; return whether they may be stored through the map."""
        if stop <= self._ready_end:
            return True
        ready_end = self._blocks.prepare(position, stop)
        # Limited, because a sync may reset the blocks before the next store.
        self._ready_end = min(ready_end, stop + _READY_BYTES)
        if position - self._unmapped_end >= _UNMAPPED_BYTES:
            # Saves the next sync its work for each mapped page.
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
        """Do nothing: stored bytes are in the page cache."""

    def flush(self) -> None:
        """Sync by descriptor: that covers mapped pages and, unlike msync here, releases the GIL."""
        self._file.sync()
        self.synced()

    def synced(self) -> None:
        """See `SegmentChannel`."""
        self._blocks.note_sync()
        # The next store prepares the file again.
        self._ready_end = 0

    def close(self) -> None:
        """Close the descriptor; the map is unmapped with the last reader's view."""
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
