"""The `file` writer: writes to a segment with `pwrite`; readers use a read-only map of it.

Written bytes are in the page cache at once: they survive the death of the process, not of the machine. If puts wait
for the disk (a flush policy that waits), records are gathered and written to the file in one write, together with the
sync that the puts wait for. A separate write for each record would release the GIL under the append lock; with
multiple threads that costs more than the write.
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
        """Write to a file of `capacity` bytes; `blocks` allocates its blocks, None if nothing was written to it yet."""
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
        """See `SegmentChannel`. A write that fails for lack of space leaves part of a record; `reserve` leaves none."""
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
        """Close the descriptor; the map is unmapped with the last reader's view."""
        self._file.close()


class GatheringChannel(FileChannel):
    """One segment whose new records are buffered until the next commit, which writes them in one write."""

    def __init__(self, file: File, capacity: int, blocks: Blocks) -> None:
        super().__init__(file, capacity, blocks)
        self._gathered = GatherBuffer()
        # For commits to a file without a descriptor. Reentrant: a signal handler may commit during a commit.
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
        """See `SegmentChannel`. Bytes left by an interrupted append are overwritten by the next append."""
        if position + len(data) > self._blocks.end:
            self._blocks.reserve(position + len(data))
        if not self._gathered.put(position, data):
            self.commit()
            # Too large to be copied once more.
            self._file.pwrite(data, position)

    def commit(self) -> None:
        """See `SegmentChannel`."""
        descriptor = self.descriptor
        if descriptor is not None:
            self._gathered.commit(descriptor)
            return
        with self._committing:
            # The append path adds records meanwhile; buffered bytes are dropped only after they are in the file.
            position, data = self._gathered.peek()
            if data:
                self._file.pwrite(data, position)
                self._gathered.drop(position + len(data))


class FileWriter(SegmentWriter):
    """Writes through the descriptor. Best with `sync`; with other policies, one system call for each message."""

    name: ClassVar[str] = "file"
    needs_allocated_file: ClassVar[bool] = False

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        # A put is acknowledged only after its sync, so its bytes may stay in the buffer until then.
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
