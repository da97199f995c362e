"""One segment of the log: a fixed-size file of records, written once, front to back.

A segment is named by its first log offset, in decimal, padded to 20 digits. It is either being
written (it has a `SegmentChannel`) or only read. Readers hold a lease while they look at its bytes;
a segment that is retired goes when its last lease is back, or when a forced end is asked for after
an interval (spec section 9.5).

Invariants:
    * `0 <= flushed_position <= committed_position <= wrote_position <= capacity`; none decreases,
      except by truncation.
    * A record never crosses a segment; what is left over at its end is one blank record.

One writer, many readers.
"""

import contextlib
import errno
import mmap
import threading
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from penstock._kernel import Extent, GatherBuffer
from penstock.contracts import SegmentChannel
from penstock.errors import OffsetError
from penstock.files import File, Files
from penstock.format.columns import Buffer

_READ_BYTES = 1 << 20
# Added to a lease's count when its holders are passed over (spec section 9.5).
_FORCED = -1000


class Lease:
    """A counted hold on something whose bytes are being read. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 1
        self._retired_at_ms: int | None = None

    @property
    def is_available(self) -> bool:
        """Whether a new hold would be granted."""
        return self._retired_at_ms is None and self._count > 0

    @property
    def is_over(self) -> bool:
        """Whether nobody holds it any more."""
        return self._count <= 0

    @property
    def was_forced(self) -> bool:
        """Whether somebody still held it when it ended, and may look at the bytes yet."""
        return self._count <= _FORCED

    def hold(self) -> bool:
        """Take a hold; False when it was retired."""
        with self._lock:
            if not self.is_available:
                return False
            self._count += 1
            return True

    def release(self) -> None:
        """Give a hold back."""
        with self._lock:
            self._count -= 1

    def retire(self, now_ms: int, force_after_ms: int) -> bool:
        """Grant no more holds; say whether all are back, or the interval has passed since the first call."""
        with self._lock:
            if self._retired_at_ms is None:
                self._retired_at_ms = now_ms
                self._count -= 1
            elif self._count > 0 and now_ms - self._retired_at_ms >= force_after_ms:
                # Far below zero, so that late releases never bring it back to life.
                self._count = _FORCED - self._count
            return self._count <= 0


@lru_cache
def lends(channel: type[SegmentChannel], what: str, *methods: str) -> bool:
    """Say whether what a channel lends may be used past some methods: not past one that a subclass has put over it."""
    definers = {
        name: next(cls for cls in channel.__mro__ if name in vars(cls)) for name in (what, *methods)
    }
    return all(issubclass(definers[what], definers[name]) for name in methods)


class Readable:
    """The segments that are open for reading, so that a long log does not use up the descriptors.

    Each takes two, for its file and its map. Safe from any thread.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 2)
        self._open: deque[Segment] = deque()

    def note(self, segment: "Segment") -> None:
        """Take in a segment just opened, and let go of the one opened longest ago when they are too many."""
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
        # Moved by whoever appends: the kernel, for records that go straight into memory.
        self.extent = Extent(capacity)
        self.flushed_position = capacity
        # What lies after it was never written: it is not looked at through a map, which on a tmpfs takes room.
        self.mapped_end = capacity
        self.lease = Lease()
        self.channel: SegmentChannel | None = None
        self._holds_back = False
        self._file: File | None = None
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._opening = threading.Lock()

    @property
    def end_offset(self) -> int:
        """Log offset behind the last possible byte."""
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
        """Every byte before it was handed to the system."""
        return self.extent.committed

    @committed_position.setter
    def committed_position(self, position: int) -> None:
        self.extent.committed = position

    def start_writing(
        self, channel: SegmentChannel, position: int, *, commits_at_once: bool
    ) -> None:
        """Take over a channel whose file holds `position` bytes of records."""
        self.channel = channel
        self._holds_back = not commits_at_once
        self.wrote_position = self.committed_position = self.flushed_position = position
        self._view = channel.view
        self.mapped_end = self.capacity

    def set_position(self, position: int) -> None:
        """Say how far the records reach, after a walk or a cut."""
        self.wrote_position = self.committed_position = self.flushed_position = position

    def commit(self) -> None:
        """Hand what was written to the system, so that readers see it; one thread at a time.

        Nothing to do for a channel that commits at once: there the append moves the position.
        """
        wrote = self.wrote_position
        if self._holds_back and self.channel is not None and self.committed_position < wrote:
            self.channel.commit()
            self.extent.commit_to(wrote)

    def flush(self) -> None:
        """Make durable what was committed; on an error no position moves."""
        committed = self.committed_position
        if self.channel is not None and self.flushed_position < committed:
            self.channel.flush()
            self.flushed_position = committed

    @property
    def descriptor(self) -> int | None:
        """What makes the segment durable by `fdatasync`, without the channel's help; None for the channel's `flush`."""
        channel = self.channel
        if channel is None or not lends(type(channel), "descriptor", "commit", "flush"):
            return None
        return channel.descriptor if not self._holds_back or self.gathered is not None else None

    @property
    def gathered(self) -> GatherBuffer | None:
        """Where records may be put past the channel's `write`; None for nowhere."""
        channel = self.channel
        if channel is None or not self._holds_back:
            return None
        return channel.gathered if lends(type(channel), "gathered", "write", "commit") else None

    def flushed_to(self, position: int) -> None:
        """Note that all before a position was made durable by the descriptor; sealed if that is the end."""
        self.extent.commit_to(position)
        self.flushed_position = position
        if position == self.capacity:
            self.seal()

    def seal(self) -> None:
        """Stop writing: the channel is closed and reading goes on by an own map."""
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
        """Return bytes by a plain read; safe when another process may shorten or recycle the file.

        A file is renamed before its bytes are overwritten, so bytes that were read while it still had
        its name are right. `FileNotFoundError` when it has not.
        """
        with self._opening:
            file = self._reader()
        data = file.pread(size, position)
        self._check_name(file)
        return data

    def read_into(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        """As `pread`, from several positions into memory; what lies behind the file's end reads as zeros."""
        with self._opening:
            file = self._reader()
        for position, memory in pieces:
            got = file.read_into(memory, position)
            memory[got:] = bytes(len(memory) - got)
        self._check_name(file)

    def _check_name(self, file: File) -> None:
        """Raise if the file that was read has lost its name meanwhile."""
        if self._files.inode(self.path) != file.inode:
            with self._opening:
                self._file = None
            raise FileNotFoundError(errno.ENOENT, "the segment is gone", str(self.path))

    def has(self, position: int, size: int) -> bool:
        """Say whether the file is long enough to hold these bytes."""
        with self._opening:
            return position + size <= self._reader().size

    def data_end(self) -> int:
        """Return the position behind which nothing was ever written; see `File.data_end`."""
        with self._opening:
            return self._reader().data_end()

    def _reader(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
            self.readable.note(self)
        return self._file

    def let_go(self) -> None:
        """Forget file and map; whoever looks at them keeps them until then, the next look opens them anew."""
        if self.channel is None and self._opening.acquire(blocking=False):
            try:
                self._view = self._map = self._file = None
            finally:
                self._opening.release()

    def last_write_ms(self) -> int:
        """Return when the file was last written, as the system says."""
        with self._opening:
            if self._file is not None:
                return self._file.mtime_ms
            # Retention asks every segment: left open, a large log would use up the descriptors.
            file = self._files.open(self.path)
            try:
                return file.mtime_ms
            finally:
                file.close()

    def is_zero(self) -> bool:
        """Say whether no byte of the file is anything but zero."""
        zeros = bytes(_READ_BYTES)
        for position in range(0, self.capacity, _READ_BYTES):
            data = self.pread(min(_READ_BYTES, self.capacity - position), position)
            if data != zeros[: len(data)]:
                return False
        return True

    def sync(self) -> None:
        """Make durable whatever the file holds."""
        file = self._files.open(self.path, writable=True)
        try:
            file.sync()
        finally:
            file.close()

    def erase(self, position: int) -> None:
        """Zero everything behind `position`, durably."""
        file = self._files.open(self.path, writable=True)
        try:
            # What is put there next allocates its own blocks.
            file.clear(position, self.capacity)
            file.sync()
        finally:
            file.close()

    def close(self) -> None:
        """Let go of file, map and channel; a map that readers still look at ends with them."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        with self._opening:
            self._view = None
            self._map = None
            if self._file is not None:
                self._file.close()
                self._file = None


def take(segment: Segment, position: int, size: int, *, mapped: bool) -> Buffer:
    """Return `size` bytes of a segment; `OffsetError` for such as lie outside of it."""
    if position < 0 or size < 0 or position + size > segment.capacity:
        raise OffsetError(segment.base_offset + position, segment.base_offset, segment.end_offset)
    if mapped:
        view = segment.view()
        if position + size > segment.mapped_end:
            # Read otherwise, what was never written would be brought into memory, and count as written then.
            segment.mapped_end = segment.data_end()
            if position + size > segment.mapped_end:
                return bytes(view[position : max(segment.mapped_end, position)]).ljust(size, b"\0")
        return view[position : position + size]
    # A file that was cut short, or is only half made, reads as zeros behind its end: what is left is read.
    return segment.pread(size, position).ljust(size, b"\0")
