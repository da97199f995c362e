"""One segment of the log: a fixed-size file of records, written once, front to back.

A segment is named by its first log offset, in decimal, padded to 20 digits. It is either being
written (it has a `SegmentChannel`) or only read. Readers hold a lease while they access its bytes;
a retired segment is deleted when its last lease is released, or forcibly after an interval (spec
section 9.5).

Invariants:
    * `0 <= committed_position <= wrote_position <= capacity`; neither decreases,
      except by truncation.
    * A record never crosses a segment; the room left at its end is filled by one blank record.

One writer, many readers.
"""

import contextlib
import errno
import mmap
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from penstock._kernel import Extent, GatherBuffer
from penstock.contracts import SegmentChannel
from penstock.errors import DiskFullError, OffsetError
from penstock.files import File, Files
from penstock.files.file import NO_ROOM
from penstock.format.columns import Buffer
from penstock.runtime.workers import is_interrupt

_READ_BYTES = 1 << 20
# Added to a lease's count when it ends although it is still held (spec section 9.5).
_FORCED = -1000


class Lease:
    """A counted hold on a segment whose bytes are being read. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 1
        self._retired_at_ms: int | None = None

    @property
    def is_available(self) -> bool:
        """Whether a new hold would be granted."""
        return self._retired_at_ms is None and self._count > 0

    @property
    def was_forced(self) -> bool:
        """Whether the lease ended while it was held, so that a reader may still access the bytes."""
        return self._count <= _FORCED

    def hold(self) -> bool:
        """Take a hold; return False if the lease was retired."""
        with self._lock:
            if not self.is_available:
                return False
            self._count += 1
            return True

    def release(self) -> None:
        """Release a hold."""
        with self._lock:
            self._count -= 1

    def retire(self, now_ms: int, force_after_ms: int) -> bool:
        """Grant no more holds; return whether all are released, or the interval has passed since the first call."""
        with self._lock:
            if self._retired_at_ms is None:
                self._retired_at_ms = now_ms
                self._count -= 1
            elif self._count > 0 and now_ms - self._retired_at_ms >= force_after_ms:
                # Far below zero, so that late releases never make the count positive.
                self._count = _FORCED - self._count
            return self._count <= 0


class Readable:
    """The segments that are open for reading; limits their number, so that a long log does not use up the descriptors.

    Each segment takes two descriptors, for its file and its map. Safe from any thread.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 2)
        self._open: deque[Segment] = deque()

    def note(self, segment: "Segment") -> None:
        """Register an opened segment; close the oldest one when the limit is exceeded."""
        self._open.append(segment)
        if len(self._open) > self._limit:
            with contextlib.suppress(IndexError):
                self._open.popleft().let_go()


class Segment:
    """One file of the log, for reading, and for writing while it has a channel."""

    def __init__(
        self,
        files: Files,
        path: Path,
        base_offset: int,
        capacity: int,
        readable: Readable | None = None,
    ) -> None:
        self._files = files
        self.readable = readable or Readable(1)
        self.path = path
        self.base_offset = base_offset
        self.capacity = capacity
        # Advanced by the append path; by the kernel for records that it stores into memory.
        self.extent = Extent(capacity)
        # Bytes after it were never written; they are not read through the map, because that allocates pages on a tmpfs.
        self.mapped_end = capacity
        self.lease = Lease()
        self.channel: SegmentChannel | None = None
        self.holds_back = False
        # The name of the segment writer, for errors.
        self.writer = ""
        self._file: File | None = None
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._opening = threading.Lock()

    @property
    def end_offset(self) -> int:
        """Log offset after the segment's last byte."""
        return self.base_offset + self.capacity

    @property
    def wrote_position(self) -> int:
        """Every byte before it was written to the channel."""
        return self.extent.wrote

    @wrote_position.setter
    def wrote_position(self, position: int) -> None:
        self.extent.wrote = position

    @property
    def committed_position(self) -> int:
        """Every byte before it was passed to the system."""
        return self.extent.committed

    @committed_position.setter
    def committed_position(self, position: int) -> None:
        self.extent.committed = position

    def start_writing(
        self, channel: SegmentChannel, position: int, *, commits_at_once: bool, writer: str
    ) -> None:
        """Set the channel for writing, of the segment writer `writer`; its file holds `position` bytes of records."""
        self.channel = channel
        self.writer = writer
        self.holds_back = not commits_at_once
        self.wrote_position = self.committed_position = position
        self._view = channel.view
        self.mapped_end = self.capacity

    def write(self, data: Buffer, sizes: Sequence[int] = ()) -> None:
        """Write after the records, without counting it; if the disk is full, raises `DiskFullError` and leaves nothing.

        Any other failure, an `OSError`, must stop the store: what was written may be whole records.
        """
        assert self.channel is not None
        try:
            self.channel.write(self.wrote_position, data, sizes)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._erase(data, sizes)
                raise DiskFullError(self.path, len(data)) from error
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            raise OSError(errno.EIO, f"segment writer {self.writer!r} failed: {error!r}") from error

    def _erase(self, data: Buffer, sizes: Sequence[int]) -> None:
        """Zero durably what a write has left if there may be whole records, which the next recovery would keep.

        A part of a single record is a torn tail, and the next append writes over it.
        """
        assert self.channel is not None
        try:
            written = self.pread(len(data), self.wrote_position).rstrip(b"\0")
            if written and (sizes or written == bytes(data).rstrip(b"\0")):
                # Only what is there: those bytes have their blocks.
                self.channel.write(self.wrote_position, bytes(len(written)))
                self.sync()
        except Exception as error:
            raise OSError(
                errno.EIO, f"the disk is full, and what was written could not be erased: {error!r}"
            ) from error

    def set_position(self, position: int) -> None:
        """Set where the records end, after a scan or a truncation."""
        self.wrote_position = self.committed_position = position

    def commit(self) -> None:
        """Pass the written bytes to the system, so that readers see them; one thread at a time.

        Does nothing for a channel that commits at once: there the append advances the position.
        """
        wrote = self.wrote_position
        if self.holds_back and self.channel is not None and self.committed_position < wrote:
            self.channel.commit(wrote)
            self.extent.commit_to(wrote)

    @property
    def descriptor(self) -> int | None:
        """The descriptor whose `fdatasync` makes the segment durable; None if the channel's `flush` must be called."""
        channel = self.channel
        if channel is None or (self.holds_back and not isinstance(channel.buffer, GatherBuffer)):
            return None
        return channel.descriptor

    @property
    def buffer(self) -> memoryview | GatherBuffer | None:
        """What takes single records in place of the channel's `write`; None if there is nothing that may."""
        channel = self.channel
        buffer = None if channel is None else channel.buffer
        # Into memory only if records are readable without a later commit.
        return buffer if isinstance(buffer, GatherBuffer) is self.holds_back else None

    def flushed_to(self, position: int) -> None:
        """Note that all bytes before a position are durable; seal the segment if that is its end."""
        self.extent.commit_to(position)
        if position == self.capacity:
            self.seal()

    def seal(self) -> None:
        """Stop writing: close the channel; later reads use a map of their own."""
        channel, self.channel = self.channel, None
        if channel is not None:
            with self._opening:
                self._view = None
            channel.close()

    def view(self) -> memoryview:
        """Return the whole file as a map; only for files that nobody else may shorten."""
        view = self._view
        if view is not None:
            return view
        with self._opening:
            if self._view is None:
                file = self._reader()
                self.mapped_end = file.data_end()
                self._map = file.map(self.capacity, writable=False)
                self._view = memoryview(self._map)
            return self._view

    def pread(self, size: int, position: int) -> bytes:
        """Return bytes by a plain read; safe when another process may shorten, replace or recycle the file.

        A file is renamed before its bytes are overwritten, so bytes that were read while it still had
        its name are right. Raises `FileNotFoundError` if no file has its name any more.
        """
        while True:
            with self._opening:
                file = self._reader()
            data = file.pread(size, position)
            if self._has_name(file):
                return data

    def read_into(self, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Like `pread`, from multiple positions into memory; bytes after the file's end read as zeros."""
        while True:
            with self._opening:
                file = self._reader()
            for position, memory in pieces:
                got = file.read_into(memory, position)
                memory[got:] = bytes(len(memory) - got)
            if self._has_name(file):
                return

    def _has_name(self, file: File) -> bool:
        """Return whether the file that was read still has its name, and no other one, as after a cut of the log."""
        inode = self._files.inode(self.path)
        if inode != file.inode:
            with self._opening:
                self._file = None
            if not inode:
                raise FileNotFoundError(errno.ENOENT, "the segment was deleted", str(self.path))
        return inode == file.inode

    def has(self, position: int, size: int) -> bool:
        """Return whether the file is long enough to hold these bytes."""
        with self._opening:
            return position + size <= self._reader().size

    def data_end(self) -> int:
        """Return the position after which nothing was ever written; see `File.data_end`."""
        with self._opening:
            return self._reader().data_end()

    def _reader(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
            self.readable.note(self)
        return self._file

    def let_go(self) -> None:
        """Drop file and map, which close when no reader uses them any more; the next read opens them again."""
        if self.channel is None and self._opening.acquire(blocking=False):
            try:
                self._view = self._map = self._file = None
            finally:
                self._opening.release()

    def last_write_ms(self) -> int:
        """Return the file's modification time in Unix milliseconds."""
        with self._opening:
            if self._file is not None:
                return self._file.mtime_ms
            # Retention calls this for every segment: open files of a large log would use up the descriptors.
            with self._files.open(self.path) as file:
                return file.mtime_ms

    def is_zero(self) -> bool:
        """Return whether all bytes of the file are zero."""
        zeros = bytes(_READ_BYTES)
        for position in range(0, self.capacity, _READ_BYTES):
            data = self.pread(min(_READ_BYTES, self.capacity - position), position)
            if data != zeros[: len(data)]:
                return False
        return True

    def sync(self) -> None:
        """Make the file's content durable."""
        with self._files.open(self.path, writable=True) as file:
            file.sync()

    def erase(self, position: int) -> None:
        """Zero all bytes from `position` on, durably."""
        with self._files.open(self.path, writable=True) as file:
            # The blocks may be freed: later writes allocate their own.
            file.clear(position, self.capacity)
            file.sync()

    def close(self) -> None:
        """Close the channel, and drop file and map: both stay valid for readers that still use them."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        with self._opening:
            self._view = self._map = self._file = None


def take(segment: Segment, position: int, size: int, *, mapped: bool) -> Buffer:
    """Return `size` bytes of a segment; raises `OffsetError` if any of them is outside of it."""
    if position < 0 or size < 0 or position + size > segment.capacity:
        raise OffsetError(segment.base_offset + position, segment.base_offset, segment.end_offset)
    if mapped:
        view = segment.view()
        if position + size > segment.mapped_end:
            # Reading unwritten bytes through the map would allocate pages, and they would count as written afterwards.
            segment.mapped_end = segment.data_end()
            if position + size > segment.mapped_end:
                return bytes(view[position : max(segment.mapped_end, position)]).ljust(size, b"\0")
        return view[position : position + size]
    # A truncated or partly created file reads as zeros after its end.
    return segment.pread(size, position).ljust(size, b"\0")
