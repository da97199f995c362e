"""The built-in segment writers. Blocks are allocated ahead of the append position (see `penstock.files.blocks`).

* `mmap` stores into a shared map of the segment. A memory write into a hole kills the process if the disk is full, so
  blocks come first; if no put waits for a sync, zeros are written ahead as well. As long as the blocks do not fill a
  whole unit of the page cache, as in a store that is written slowly, bytes are written with plain writes.
* `file` writes with `pwrite`; readers use a read-only map. If puts wait for the disk (a flush policy that waits),
  records are gathered and written to the file in one write, together with the sync that the puts wait for. A separate
  write for each record would release the GIL under the append lock; with threads that costs more than the write.
* `transient-pool` appends to a pooled buffer; a commit service writes it to the file in large writes. Corresponds to
  RocketMQ's transient store pool (spec sections 8.5 and 9.1). An append writes only to the memory of the process, so
  the page cache never slows it down. Readers see only committed bytes. Bytes that are not committed, up to one interval
  of appends, are lost if the process dies.

With the first two, written bytes are in the page cache at once: they survive the process, not the machine.
"""

import mmap
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from penstock.contracts import (
    MS_MAX,
    Committer,
    Context,
    GatherBuffer,
    SegmentChannel,
    SegmentWriter,
    Stoppable,
    limits,
    store_records,
)
from penstock.errors import BusyError, StoreFailedError
from penstock.escape import get_logger
from penstock.files import File, Files
from penstock.files.blocks import Blocks
from penstock.format.arrays import np
from penstock.format.columns import Buffer

logger = get_logger(__name__)

_STORED_RECORDS_MAX = 256
# Pages before the append position are unmapped in steps of at least this size.
_UNMAPPED_BYTES = 64 << 10
# Maximum size of stores before the next call that prepares blocks and unmaps pages.
_READY_BYTES = 256 << 10
PAGE_BYTES = 4096
PAGES_MAX = 1 << 30
# Buffers of the pool: each has the size of a segment, and is kept in memory.
BUFFERS_MAX = 65_536
# Copies of at least this size are made by numpy, which releases the GIL.
_LARGE_BYTES = 64 << 10


class _FileChannel(SegmentChannel):
    """One segment whose file gets its blocks ahead."""

    _file: File
    blocks: Blocks

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        """Close the descriptor; the map is unmapped with the last reader's view."""
        self._file.close()


class MmapChannel(_FileChannel):
    """One mapped segment. One writer, many readers."""

    def __init__(self, file: File, capacity: int, blocks: Blocks | None = None) -> None:
        """Write to a file of `capacity` bytes; `blocks` allocates its blocks, None if nothing was written to it yet."""
        self._file = file
        self.blocks = blocks or Blocks(file, capacity, 0, mapped=True)
        # End of the range in which stores need no preparation.
        self._ready_end = 0
        # Pages before this position have been unmapped after their stores.
        self._unmapped_end = self.blocks.begin
        self._map = file.map_from(capacity, self.blocks.begin)
        self._view = memoryview(self._map)

    @property
    def view(self) -> memoryview:
        return self._view.toreadonly()

    @property
    def buffer(self) -> memoryview:
        return self._view

    @property
    def buffer_end(self) -> int:
        return self._ready_end

    @property
    def descriptor(self) -> int | None:
        return self._file.descriptor

    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        """See `SegmentChannel`. A large batch is written to the file: faster, and the next sync finds fewer ranges.

        A small batch is stored record by record: a system call would release the GIL within the append lock.
        """
        stop = position + len(data)
        if len(sizes) > _STORED_RECORDS_MAX:
            self.blocks.reserve(stop)
            self._file.pwrite(data, position)
        elif self._may_store(position, stop):
            store_records(self._view, position, data, sizes or (len(data),))
        else:
            self._file.pwrite(data, position)

    def _may_store(self, position: int, stop: int) -> bool:
        """Prepare the file for the next bytes, [position, stop); return whether the map may be used for them."""
        if stop <= self._ready_end:
            return True
        ready_end = self.blocks.prepare(position, stop)
        # Limited, because a sync may reset the blocks before the next store.
        self._ready_end = min(ready_end, stop + _READY_BYTES)
        if position - self._unmapped_end >= _UNMAPPED_BYTES:
            # Saves the next sync its work for each mapped page.
            self._file.unmap_pages(self._map, self._unmapped_end, position)
            self._unmapped_end = position
        return stop <= ready_end

    def commit(self, stop: int) -> None:
        """Do nothing: stored bytes are in the page cache."""

    def flush(self) -> None:
        """Sync by descriptor: that covers mapped pages and, unlike msync here, releases the GIL."""
        self._file.sync()
        self.synced()

    def synced(self) -> None:
        self.blocks.note_sync()
        # The next store prepares the file again.
        self._ready_end = 0


class _AheadWriter(SegmentWriter):
    """A writer whose segments get their blocks ahead, in steps as large as those of the segment before."""

    needs_allocated_file: ClassVar[bool] = False
    _last: Blocks | None = None

    def _blocks(self, file: File, capacity: int, position: int, **how: bool) -> Blocks:
        now_ms = self.context.clock.monotonic_ms
        self._last = Blocks(file, capacity, position, now_ms, after=self._last, **how)
        return self._last


class MmapWriter(_AheadWriter):
    """Writes through a map. Fastest for single messages; a sync costs more than after plain writes."""

    name: ClassVar[str] = "mmap"
    capabilities: ClassVar[frozenset[str]] = frozenset({"mapped"})
    commits_at_once: bool = True

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        zeroes = not self.context.appenders_wait
        blocks = self._blocks(file, capacity, position, mapped=True, zeroes=zeroes)
        return MmapChannel(file, capacity, blocks)


class FileChannel(_FileChannel):
    """One segment written by `pwrite`. One writer, many readers."""

    def __init__(self, file: File, capacity: int, blocks: Blocks | None = None) -> None:
        """Write to a file of `capacity` bytes; `blocks` allocates its blocks, None if nothing was written to it yet."""
        self._file = file
        self.blocks = blocks or Blocks(file, capacity, 0)
        self._view = memoryview(file.map(capacity, writable=False))

    @property
    def view(self) -> memoryview:
        return self._view

    @property
    def descriptor(self) -> int | None:
        return self._file.descriptor

    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        """See `SegmentChannel`. A write that fails for lack of space leaves part of a record; `reserve` leaves none."""
        if position + len(data) > self.blocks.end:
            self.blocks.reserve(position + len(data))
        self._file.pwrite(data, position)

    def commit(self, stop: int) -> None:
        """Do nothing: what is written is in the page cache."""


class GatheringChannel(FileChannel):
    """One segment whose new records are buffered until the next commit, which writes them in one write."""

    def __init__(self, file: File, capacity: int, blocks: Blocks) -> None:
        super().__init__(file, capacity, blocks)
        self._gathered = GatherBuffer()
        # For commits to a file without a descriptor. Reentrant: a signal handler may commit during a commit.
        self._committing = threading.RLock()

    @property
    def buffer(self) -> GatherBuffer:
        return self._gathered

    @property
    def buffer_end(self) -> int:
        return self.blocks.end

    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        """See `SegmentChannel`. Bytes left by an interrupted append are overwritten by the next append."""
        if position + len(data) > self.blocks.end:
            self.blocks.reserve(position + len(data))
        if not self._gathered.put(position, data):
            self.commit(position)
            # Too large to be copied once more.
            self._file.pwrite(data, position)

    def commit(self, stop: int) -> None:
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


class FileWriter(_AheadWriter):
    """Writes through the descriptor. Best with `sync`; with other policies, one system call for each message."""

    name: ClassVar[str] = "file"

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        # A put is acknowledged only after its sync, so its bytes may stay in the buffer until then.
        self.commits_at_once = not context.appenders_wait

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        blocks = self._blocks(file, capacity, position)
        if self.commits_at_once:
            return FileChannel(file, capacity, blocks)
        return GatheringChannel(file, capacity, blocks)


class BufferPool:
    """Provides buffers; the buffer returned last is reused first, while its pages are still in cache.

    A buffer is created when it is first needed, so a store that rarely rolls uses one or two. Safe from any thread.
    """

    def __init__(self, files: Files, count: int, size: int, *, lock_memory: bool) -> None:
        self._files = files
        self._count = count
        self._size = size
        self._lock_memory = lock_memory
        self._free: list[mmap.mmap] = []
        self._made = 0
        self._guard = threading.Lock()

    @property
    def available(self) -> int:
        """The number of buffers that can be borrowed now."""
        return self._count - self._made + len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """Return a buffer; None if all are in use."""
        with self._guard:
            buffer = self._free.pop() if self._free else None
            is_made = buffer is None and self._made < self._count
            self._made += is_made
        if not is_made:
            return buffer
        buffer = self._files.memory(self._size)
        if self._lock_memory:
            self._keep_in_memory(buffer)
        return buffer

    def _keep_in_memory(self, buffer: mmap.mmap) -> None:
        try:
            self._files.lock_memory(buffer)
        except OSError as error:
            self._lock_memory = False
            logger.warning(
                "the transient pool's buffers cannot be locked into memory (%s) and may be swapped out; no data is "
                "affected. Raise the limit (ulimit -l, LimitMEMLOCK=) to %d KiB, or set "
                "write.transient-pool.lock_memory=false if that is acceptable",
                error, self._count * self._size // 1024,
            )  # fmt: skip

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return a buffer to the pool."""
        with self._guard:
            self._free.append(buffer)

    def close(self) -> None:
        """Release all buffers that are not in use."""
        with self._guard:
            self._free.clear()
            self._made = self._count


@attrs.frozen(kw_only=True)
class TransientPoolOptions:
    """Options of the transient pool.

    Attributes:
        buffers: maximum number of buffers, each of a segment's size.
        lock_memory: keep the buffers out of swap (`mlock`); if the limit forbids it, a warning is logged.
        interval_ms: time between two checks of the commit service.
        least_pages: number of 4096-byte pages that must be waiting before it commits.
        thorough_interval_ms: after this time all waiting bytes are committed, even if they are less than `least_pages`.
        fast_fail: if no buffer is free, refuse a put (`BusyError`) instead of writing without a buffer.
    """

    buffers: int = attrs.field(default=5, validator=limits(1, BUFFERS_MAX))
    lock_memory: bool = True
    interval_ms: int = attrs.field(default=200, validator=limits(1, MS_MAX))
    least_pages: int = attrs.field(default=4, validator=limits(0, PAGES_MAX))
    thorough_interval_ms: int = attrs.field(default=200, validator=limits(0, MS_MAX))
    fast_fail: bool = False


class PooledChannel(_FileChannel):
    """One segment whose new bytes are in a buffer until they are committed."""

    def __init__(
        self, file: File, capacity: int, position: int, pool: BufferPool, blocks: Blocks
    ) -> None:
        self._file = file
        self.blocks = blocks
        self._capacity = capacity
        self._pool = pool
        self._view = memoryview(file.map(capacity, writable=False))
        self._buffer = pool.borrow()
        self._wrote = self._committed = position
        # The append path writes while the commit service returns the buffer.
        self._guard = threading.Lock()

    @property
    def has_buffer(self) -> bool:
        """Whether appends are stored in memory; False if they are written to the file at once."""
        return self._buffer is not None

    @property
    def view(self) -> memoryview:
        return self._view

    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        buffer = self._buffer
        stop = position + len(data)
        # Reserved now, while the put can still be refused: a commit must find room for acknowledged bytes.
        if stop > self.blocks.end:
            self.blocks.reserve(stop)
        if position < self._committed:
            # An interrupted append left bytes that were committed but do not count: these bytes replace them.
            with self._guard:
                self._committed = position
        if buffer is None:
            self._file.pwrite(data, position)
        elif len(data) < _LARGE_BYTES:
            buffer[position:stop] = data
        else:
            room = np.frombuffer(buffer, np.uint8, len(data), position)
            np.copyto(room, np.frombuffer(data, np.uint8))
        self._wrote = stop

    def commit(self, stop: int) -> None:
        """Write the waiting bytes to the file; return a full segment's buffer to the pool."""
        with self._guard:
            wrote = self._wrote
            if self._buffer is not None:
                if wrote > self._committed:
                    with memoryview(self._buffer) as waiting:
                        self._file.pwrite(waiting[self._committed : wrote], self._committed)
                if stop == self._capacity:
                    self._release()
            self._committed = wrote

    def close(self) -> None:
        """Return the buffer, and close the descriptor."""
        with self._guard:
            self._release()
        super().close()

    def _release(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give_back(buffer)


class TransientPoolWriter(_AheadWriter):
    """Keeps appended bytes in memory, and commits them at intervals. Safe from any thread."""

    name: ClassVar[str] = "transient-pool"
    Options: ClassVar[type] = TransientPoolOptions
    commits_at_once: bool = False

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._pool = BufferPool(
            context.files,
            options.buffers,
            context.geometry.segment_bytes,
            lock_memory=options.lock_memory,
        )
        self._committer: Committer | None = None
        self._worker: Stoppable | None = None
        self._thorough_at_ms = context.clock.monotonic_ms()
        self._without_buffer = 0

    @classmethod
    def conflict(cls, picks: Mapping[str, Sequence[str]]) -> str | None:
        """See `Strategy`: under `sync` each put would wait for the commit that the pool is meant to avoid."""
        if "sync" in picks["flush"]:
            return (
                "flush.use is 'sync': every put waits until its bytes are on disk, so a buffer "
                "before the file only adds a copy; use write.use='file' instead (RocketMQ 4 silently "
                "bypasses its pool under SYNC_FLUSH)"
            )
        return None

    def start(self, committer: Committer) -> None:
        """Start the commit service."""
        self._committer = committer
        self._worker = self.context.spawn("penstock-commit", self._step)

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """See `SegmentWriter`; without a free buffer the channel writes directly to the file."""
        if self.options.fast_fail and not self._pool.available:
            raise BusyError("no buffer of the transient pool has been free", 0)
        blocks = self._blocks(file, capacity, position)
        channel = PooledChannel(file, capacity, position, self._pool, blocks)
        self._without_buffer += not channel.has_buffer
        return channel

    def _step(self) -> float | None:
        if self._is_due():
            assert self._committer is not None
            try:
                self._committer.commit()
            except StoreFailedError:
                # The next put or flush raises the error.
                return None
        return float(self.options.interval_ms) / 1000

    def _is_due(self) -> bool:
        assert self._committer is not None
        now = self.context.clock.monotonic_ms()
        waiting = self._committer.wrote_offset - self._committer.committed_offset
        thorough = now - self._thorough_at_ms >= self.options.thorough_interval_ms
        if thorough:
            self._thorough_at_ms = now
        return waiting > 0 and (thorough or waiting >= self.options.least_pages * PAGE_BYTES)

    def stats(self) -> dict[str, int]:
        return {
            "buffers_free": self._pool.available,
            "segments_without_buffer": self._without_buffer,
        }

    def close(self) -> None:
        """Stop the commit service."""
        if self._worker is not None:
            self._worker.stop()
        self._pool.close()
