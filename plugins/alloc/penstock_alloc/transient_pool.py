"""The `transient-pool` writer: appends to a pooled buffer; a commit service writes it to the file in large writes.

Corresponds to RocketMQ's transient store pool (spec sections 8.5 and 9.1). An append writes only to the memory of the
process, so the page cache never slows it down. Readers see only committed bytes. Bytes that are not committed, up to
one interval of appends, are lost if the process dies.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from penstock.contracts import (
    MS_MAX,
    Committer,
    Context,
    SegmentChannel,
    SegmentWriter,
    Stoppable,
    limits,
)
from penstock.errors import BusyError, StoreFailedError
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.arrays import np
from penstock.format.columns import Buffer
from penstock_alloc.buffer_pool import BufferPool

PAGE_BYTES = 4096
PAGES_MAX = 1 << 30
# Each has the size of a segment, and is kept in memory.
BUFFERS_MAX = 65_536
# Copies of at least this size are made by numpy, which releases the GIL.
_LARGE_BYTES = 64 << 10


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


class PooledChannel(SegmentChannel):
    """One segment whose new bytes are in a buffer until they are committed."""

    def __init__(
        self, file: File, capacity: int, position: int, pool: BufferPool, blocks: Blocks
    ) -> None:
        self._file = file
        self._blocks = blocks
        self._has_ended = False
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
        """See `SegmentChannel`."""
        return self._view

    def write(self, position: int, data: Buffer) -> None:
        """See `SegmentChannel`."""
        buffer = self._buffer
        stop = position + len(data)
        # Reserved now, while the put can still be refused: a commit must find room for acknowledged bytes.
        if stop > self._blocks.end:
            self._blocks.reserve(stop)
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

    def reserve(self, stop: int) -> None:
        """See `SegmentChannel`."""
        self._blocks.reserve(stop)

    def give_back(self, stop: int) -> None:
        """See `SegmentChannel`."""
        if self._blocks.give_back(stop):
            self._file.sync()

    def end(self) -> None:
        """See `SegmentChannel`: the next commit returns the buffer."""
        self._has_ended = True

    def commit(self) -> None:
        """Write the waiting bytes to the file; return a full segment's buffer to the pool."""
        with self._guard:
            has_ended, wrote = self._has_ended, self._wrote
            if self._buffer is not None:
                if wrote > self._committed:
                    with memoryview(self._buffer) as waiting:
                        self._file.pwrite(waiting[self._committed : wrote], self._committed)
                if has_ended:
                    self._release()
            self._committed = wrote

    def flush(self) -> None:
        """See `SegmentChannel`."""
        self._file.sync()

    def close(self) -> None:
        """Return the buffer, and close the descriptor."""
        with self._guard:
            self._release()
        self._file.close()

    def _release(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give_back(buffer)


class TransientPoolWriter(SegmentWriter):
    """Keeps appended bytes in memory, and commits them at intervals. Safe from any thread."""

    name: ClassVar[str] = "transient-pool"
    capabilities: ClassVar[frozenset[str]] = frozenset({"holds-back"})
    Options: ClassVar[type] = TransientPoolOptions
    needs_allocated_file: ClassVar[bool] = False
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
        self._blocks: Blocks | None = None

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
        clock = self.context.clock
        self._blocks = blocks = Blocks(
            file, capacity, position, clock.monotonic_ms, after=self._blocks
        )
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
        """See `Strategy`."""
        return {
            "buffers_free": self._pool.available,
            "segments_without_buffer": self._without_buffer,
        }

    def close(self) -> None:
        """Stop the commit service."""
        if self._worker is not None:
            self._worker.stop()
        self._pool.close()
