"""Bytes reach a segment by plain writes; readers look at it through a read-only map.

What was written is in the page cache at once: it survives the process, not the machine. Where puts
wait for the disk anyway (a flush policy that waits), records are gathered and go to the file in one
write with the sync that they wait for: a write of its own for each would give up the GIL under the append
lock, and with several threads that costs more than the write.
"""

import threading
from typing import Any, ClassVar

from penstock.contracts import Context, GatherBuffer, SegmentChannel, SegmentWriter
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.columns import Buffer


class FileChannel(SegmentChannel):
    """One segment written by `pwrite`. One writer, many readers."""

    def __init__(self, file: File, capacity: int, blocks: Blocks | None = None) -> None:
        """Write to a file of a capacity in bytes; `blocks` are what it has, else all of it is taken to be unwritten."""
        self._file = file
        self._blocks = blocks or Blocks(file, capacity, 0)
        self._view = memoryview(file.map(capacity, writable=False))

    @property
    def view(self) -> memoryview:
        """See `SegmentChannel`."""
        return self._view

    @property
    def descriptor(self) -> int | None:
        """See `SegmentChannel`."""
        return self._file.descriptor

    def write(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`. A write that finds no room leaves part of a record; an allocation leaves nothing."""
        if position + len(data) > self._blocks.end:
            self._blocks.reserve(position + len(data))
        self._file.pwrite(data, position)

    def reserve(self, stop: int) -> None:
        """See `SegmentChannel`."""
        self._blocks.reserve(stop)

    def give_back(self, stop: int) -> None:
        """See `SegmentChannel`."""
        if self._blocks.give_back(stop):
            self._file.sync()

    def commit(self) -> None:
        """Nothing to do: what is written is in the page cache."""

    def flush(self) -> None:
        """See `SegmentChannel`."""
        self._file.sync()

    def close(self) -> None:
        """Close the descriptor; the map goes when the last reader's view does."""
        self._file.close()


class GatheringChannel(FileChannel):
    """One segment whose new records wait for the next commit, and go to the file in one write."""

    def __init__(self, file: File, capacity: int, blocks: Blocks) -> None:
        super().__init__(file, capacity, blocks)
        self._gathered = GatherBuffer()
        # Of commits through a file that has no descriptor to lend; a signal handler may come within one.
        self._committing = threading.RLock()

    @property
    def gathered(self) -> GatherBuffer:
        """See `SegmentChannel`."""
        return self._gathered

    @property
    def memory_end(self) -> int:
        """See `SegmentChannel`."""
        return self._blocks.end

    @property
    def descriptor(self) -> int | None:
        """See `SegmentChannel`."""
        return self._file.descriptor

    def write(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`; what an interrupted append left is written over by the next."""
        if position + len(data) > self._blocks.end:
            self._blocks.reserve(position + len(data))
        if not self._gathered.put(position, data):
            self.commit()
            # Too much to be copied once more.
            self._file.pwrite(data, position)

    def commit(self) -> None:
        """See `SegmentChannel`."""
        descriptor = self.descriptor
        if descriptor is not None:
            self._gathered.commit(descriptor)
            return
        with self._committing:
            # The append path adds more meanwhile, and what waits is dropped only when it is in the file.
            position, data = self._gathered.peek()
            if data:
                self._file.pwrite(data, position)
                self._gathered.drop(position + len(data))


class FileWriter(SegmentWriter):
    """Writes through the descriptor. Best with `sync`; a system call for each message otherwise."""

    name: ClassVar[str] = "file"
    needs_allocated_file: ClassVar[bool] = False

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        # Nothing was promised to a put before its sync, so its bytes may wait for it.
        self.commits_at_once = not context.appenders_wait
        self._blocks: Blocks | None = None

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """See `SegmentWriter`."""
        clock = self.context.clock
        self._blocks = blocks = Blocks(
            file, capacity, position, clock.monotonic_ms, after=self._blocks
        )
        if self.commits_at_once:
            return FileChannel(file, capacity, blocks)
        return GatheringChannel(file, capacity, blocks)
