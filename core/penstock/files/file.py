"""One open file: reads, writes, syncs, maps. See `files` for what is assumed about the medium."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from functools import cached_property
from pathlib import Path
from typing import Self

_FALLOC_KEEP_SIZE = 0x01
_FALLOC_PUNCH_HOLE = 0x02
_FALLOC_ZERO_RANGE = 0x10
# Errors of a call that this file system does not support.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Errors of a call for which the disk has no room.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
PAGE_BYTES = 4096
# The largest folio of the page cache: 2^9 pages of 4 KiB (`HPAGE_PMD_ORDER`); of larger pages 2^11 (`MAX_XAS_ORDER`).
FOLIO_BYTES = mmap.PAGESIZE << (9 if mmap.PAGESIZE == PAGE_BYTES else 11)
# Bytes written at once become one folio of the page cache, and a memory write into any part of a folio makes the next
# sync write all of it. Bytes that are later changed and synced in small amounts are written in slices of this size.
PIECE_BYTES = 16 << 10
_ZEROS = bytes(PIECE_BYTES)
# The descriptor of standard error.
_STANDARD_MAX = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MADV_POPULATE_WRITE = 23
# One call blocks other threads that change the process's maps, so it is split into multiple calls.
_POPULATED_AT_ONCE = 16 << 20


def open_descriptor(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
    """Return a new descriptor, never that of standard input, output or error.

    In a process whose standard streams are closed, the system gives their numbers to the next files, and whatever
    prints would write into a store. These numbers are taken by the null device then.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    if descriptor > _STANDARD_MAX:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STANDARD_MAX + 1)
    finally:
        os.close(descriptor)
        while (null := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_MAX:
            os.set_inheritable(null, True)
        os.close(null)


def page_start(position: int) -> int:
    """Return the start of the page that holds a byte."""
    return position - position % mmap.PAGESIZE


class File:
    """One open regular file; its descriptor stays the same from open to close.

    A write-back error is reported only to descriptors that were open when it happened, so a segment
    keeps one `File` from creation to seal. Safe from any thread, except for `close`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor
        self._prefaulted: mmap.mmap | None = None
        # This many bytes from the beginning are known to have blocks.
        self.allocated = 0
        # Whether its pages were loaded into memory in advance.
        self.is_populated = False

    @property
    def descriptor(self) -> int | None:
        """The descriptor, for callers that write or sync directly; None if a subclass replaces `pwrite` or `sync`."""
        cls = type(self)
        is_plain = cls.sync is File.sync and cls.pwrite is File.pwrite
        return self._fd if is_plain and self._fd >= 0 else None

    @property
    def size(self) -> int:
        """Current length in bytes."""
        return os.fstat(self._fd).st_size

    @cached_property
    def inode(self) -> int:
        """The file's inode number, which does not depend on its name."""
        return os.fstat(self._fd).st_ino

    @property
    def mtime_ms(self) -> int:
        """Time of the last change in Unix milliseconds."""
        return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes at `position`; fewer only at the end of the file. An `OSError` names the file."""
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size:
                data = os.pread(self._fd, size - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        return b"".join(parts)

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read bytes at `position` into `buffer`; return how many: fewer than its length only at the file's end."""
        if type(self).pread is not File.pread:
            # A subclass that replaces `pread` (faults, a simulated disk) must be read through it.
            data = self.pread(len(buffer), position)
            buffer[: len(data)] = data
            return len(data)
        got = 0
        try:
            while got < len(buffer):
                count = os.preadv(self._fd, [buffer[got:]], position + got)
                if count == 0:
                    break
                got += count
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        return got

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`; a short write is continued until all is written."""
        size = len(data)
        done = os.pwrite(self._fd, data, position)
        while done < size:
            done += os.pwrite(self._fd, memoryview(data)[done:], position + done)

    def pwrite_pieces(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` as `pwrite` does, in slices, so that the page cache creates no large folios."""
        if position % PIECE_BYTES + len(data) <= PIECE_BYTES:
            self.pwrite(data, position)
            return
        view, at = memoryview(data), 0
        while at < len(view):
            size = PIECE_BYTES - (position + at) % PIECE_BYTES
            self.pwrite(view[at : at + size], position + at)
            at += size

    def data_end(self) -> int:
        """Return the end of the last range that has blocks; every byte after it reads as zero."""
        end = 0
        while True:
            try:
                start = os.lseek(self._fd, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return end
                raise
            end = os.lseek(self._fd, start, os.SEEK_HOLE)

    def hole_from(self, position: int) -> int:
        """Return the first position from `position` on without a written block; the file's length if none."""
        return os.lseek(self._fd, position, os.SEEK_HOLE)

    def sync(self) -> None:
        """Make the bytes durable (`fdatasync`; releases the GIL, unlike `mmap.flush`)."""
        os.fdatasync(self._fd)

    def sync_all(self) -> None:
        """Make bytes and metadata durable (`fsync`), for a file that was just created."""
        os.fsync(self._fd)

    def allocate(self, size: int) -> None:
        """Allocate blocks for the first `size` bytes; raises `OSError` (ENOSPC) if the disk has no room."""
        os.posix_fallocate(self._fd, 0, size)
        self.allocated = max(self.allocated, size)

    def allocate_range(self, start: int, stop: int) -> None:
        """Allocate blocks for bytes [start, stop) of the file; their content is kept.

        Raises `OSError` (ENOSPC) if the disk has no room.
        """
        try:
            os.posix_fallocate(self._fd, start, stop - start)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            # Writing the bytes, even unchanged, gives them blocks.
            for position in range(start, stop, len(_ZEROS)):
                data = self.pread(min(len(_ZEROS), stop - position), position)
                self.pwrite(data, position)

    def punch(self, start: int, stop: int) -> bool:
        """Turn bytes [start, stop) into a hole of zeros; return False, and change nothing, if not supported."""
        if stop <= start:
            return True
        mode = _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE
        if _libc.fallocate(self._fd, mode, start, stop - start) == 0:
            self.allocated = min(self.allocated, start)
            return True
        error = system_error(self.path)
        if error.errno in _UNSUPPORTED:
            return False
        raise error

    def clear(self, start: int, stop: int) -> None:
        """Turn bytes [start, stop) into zeros, and free their blocks where the file system can do that."""
        if not self.punch(start, stop):
            self.erase(start, stop)

    def resize(self, size: int) -> None:
        """Set the length; new bytes read as zero and have no blocks yet."""
        os.ftruncate(self._fd, size)

    def erase(self, start: int, stop: int) -> None:
        """Turn bytes [start, stop) into zeros; they stay allocated."""
        if stop <= start or self.zero_range(start, stop):
            return
        # Where that is not supported, write the zeros. Cached pages, which would keep large folios, are dropped first.
        os.fdatasync(self._fd)
        os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)
        for position in range(start, stop, len(_ZEROS)):
            self.pwrite(memoryview(_ZEROS)[: stop - position], position)

    def zero_range(self, start: int, stop: int) -> bool:
        """Turn bytes [start, stop) into zeros without writing them; return False if that is not possible.

        Their blocks stay allocated, their pages are dropped from the cache.
        """
        mode = _FALLOC_KEEP_SIZE | _FALLOC_ZERO_RANGE
        if _libc.fallocate(self._fd, mode, start, stop - start) == 0:
            return True
        error = system_error(self.path)
        # Splitting an extent into written and unwritten blocks may need one more block.
        if error.errno in _UNSUPPORTED or error.errno in NO_ROOM:
            return False
        raise error

    def renew(self) -> None:
        """Zero a used file durably. Its blocks are written, its pages are in memory, and none is in a large folio.

        If the blocks were only allocated, each later sync would have to change the file's extents as well.
        """
        size = self.size
        self.erase(0, size)
        # The file is zero already. Before Linux 5.14, which cannot populate, pages are loaded later.
        with contextlib.suppress(OSError):
            self._populate(self.map(size, writable=True))
        self.sync_all()

    def map(self, size: int, *, writable: bool) -> mmap.mmap:
        """Return the first `size` bytes as a shared map; the prefaulted map, if there is one."""
        if writable and self._prefaulted is not None and len(self._prefaulted) == size:
            return self._prefaulted
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(self._fd, size, access=access)

    def map_from(self, size: int, position: int) -> mmap.mmap:
        """Return a writable map for stores from `position` on; read-ahead is off from there."""
        made = self.map(size, writable=True)
        start = position - position % mmap.PAGESIZE
        if start < size:
            made.madvise(mmap.MADV_RANDOM, start, size - start)
        return made

    @staticmethod
    def unmap_pages(made: mmap.mmap, start: int, stop: int) -> None:
        """Unmap whole pages of [start, stop) from this process; the file's bytes stay in the page cache.

        A sync makes each modified page read-only first, and notifies every processor of each page by an interrupt. This
        call notifies them once for all pages. The next access maps the pages again, many at once.
        """
        start, stop = page_start(start), page_start(stop)
        if start < stop:
            # The system refuses this for locked memory; then the sync does it page by page.
            with contextlib.suppress(OSError):
                made.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def prefault(self, size: int) -> mmap.mmap:
        """Return a writable map whose pages are all in memory; `map` returns the same map afterwards.

        It uses `madvise(MADV_POPULATE_WRITE)`, Linux 5.14 and later; an older Linux raises `OSError` (EINVAL). The
        call releases the GIL, unlike `mmap.madvise`. The pages are dirty afterwards.
        """
        made = self.map(size, writable=True)
        self._populate(made)
        self._prefaulted = made
        return made

    def _populate(self, made: mmap.mmap) -> None:
        """Load all pages of a map, each as its own folio: read-ahead, which makes large ones, is off meanwhile."""
        size, address = len(made), address_of(made)
        made.madvise(mmap.MADV_RANDOM)
        try:
            for start in range(0, size, _POPULATED_AT_ONCE):
                length = min(_POPULATED_AT_ONCE, size - start)
                if _libc.madvise(address + start, length, _MADV_POPULATE_WRITE) != 0:
                    raise system_error(self.path)
        finally:
            made.madvise(mmap.MADV_NORMAL)
        self.is_populated = True

    def detach(self) -> int:
        """Return the descriptor, which the caller must close; this object is closed then."""
        descriptor, self._fd = self._fd, -1
        return descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; maps made from it stay valid."""
        self._prefaulted = None
        # Forgotten first: a second close would close another file that has got the same number.
        descriptor = self.detach()
        if descriptor >= 0:
            os.close(descriptor)


def address_of(memory: mmap.mmap) -> int:
    """Return the address of a writable map in this process's memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def system_error(path: Path | None = None) -> OSError:
    """Return the error of the call through ctypes that has just failed."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path) if path else None)
