"""The files of consume queues: entries of 20 bytes, addressed by ordinal; a broker's extension files; syncs.

Layout of an entry (big-endian)::

    0 log offset i64   8 record size i32   12 tag code i64

Entry n of a queue is at byte 20 n of the queue's byte space, which is divided into files of one size
named by their first byte, `consumequeue/<topic>/<queue>/<20 digits>`. Nothing else is stored: an entry
is present if its size is above 0, so unwritten (zero) bytes are the end. A pre-blank entry (offset 0,
size 2147483647) replaces an entry whose record is deleted; Java's scan for the end passes over it.
Source: spec sections 3.1 and 3.4. Not checksummed: rebuilt from the log.

Files are sparse, written with plain writes and never mapped, and few are open at a time.

A broker with enableConsumeQueueExt writes extension files, which Penstock reads: `consumequeue_ext/<topic>/<queue>/<20
digits>` has one unit for each entry, one after the other in the order of the queue, in files of one size named by their
first byte. Layout of a unit (big-endian)::

    0 unit size i16   2 tag code i64   10 store time i64   18 bitmap length i16   20 bitmap

An entry holds the address of its unit in place of the tag code: the unit's byte offset minus 2^63. That is below any
tag hash and any delivery time, so the value of an entry's third field shows which of these it is. Entries that Penstock
writes hold the tag code itself, which a broker reads as well. Source: spec section 3.6.

The unit at an address is checked before it is used. Bytes that cannot be a unit count as not found: the reader then
reads the record, and an opening after a crash writes the entry again.
"""

import contextlib
import itertools
import struct
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path

from penstock.contracts import QUEUE_ENTRY_SIZE
from penstock.files import Entry, File, Files, Volume
from penstock.format.arrays import Bools, Int64s, RowType, Structs, np
from penstock.format.names import segment_name

ENTRY = RowType([("log_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
assert ENTRY.itemsize == QUEUE_ENTRY_SIZE
# Log offset and size of an entry.
_PLACE = struct.Struct(">qi")
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = struct.pack(">qiq", 0, PRE_BLANK_SIZE, 0)

Entries = Structs
# Number of entries read at once when an entry is searched one by one; fewer at first.
_FIRST_READ_ENTRIES = 64
_READ_ENTRIES = 4096
# Number of paths that are kept for each queue.
_PATHS_MAX = 4
# Byte addresses are positive 64-bit numbers.
_BYTE_MAX = (1 << 63) - 1


class OpenFiles:
    """A bounded set of open files; the least recently used one is closed first. Safe from any thread."""

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        # Only a part of the process limit, so that logs, indexes and others get descriptors.
        self._limit = max(min(limit, files.descriptors_max // 4), 4)
        self._open: OrderedDict[Path, File] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, size: int, position: int) -> bytes:
        """Return bytes of a file; fewer at its end, none if there is no file."""
        with self._lock:
            try:
                return self._get(path, writable=False).pread(size, position)
            except FileNotFoundError:
                return b""

    def write(self, path: Path, data: bytes, position: int) -> None:
        """Write bytes into an existing file."""
        with self._lock:
            self._get(path, writable=True).pwrite_pieces(data, position)

    def is_current(self, path: Path) -> bool:
        """Return whether the file opened under a path still has that name: another process may have removed it."""
        with self._lock:
            inode = self._files.inode(path)
            return inode != 0 and inode == self._get(path, writable=False).inode

    def data_end(self, path: Path) -> int:
        """Return the position in a file after which there are only zeros."""
        with self._lock:
            return self._get(path, writable=False).data_end()

    def erase(self, path: Path, start: int, stop: int) -> None:
        """Zero bytes [start, stop) of a file; they need no blocks then."""
        with self._lock:
            self._get(path, writable=True).clear(start, stop)

    def sync(self, path: Path) -> None:
        """Make a file durable; the lock is not held during the sync."""
        try:
            file = self._files.open(path, writable=True)
        except FileNotFoundError:
            return
        with file:
            file.sync()

    def _get(self, path: Path, *, writable: bool) -> File:
        file = self._open.get(path)
        if file is None:
            file = self._files.open(path, writable=writable or not self.read_only)
            self._open[path] = file
            while len(self._open) > self._limit:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return file

    read_only = False

    def forget(self, path: Path) -> None:
        """Close a file before it is removed."""
        with self._lock:
            file = self._open.pop(path, None)
            if file is not None:
                file.close()

    def forget_replaced(self, path: Path) -> None:
        """Close a file that is open if another one has its name by now: another process has removed and created it."""
        with self._lock:
            file = self._open.get(path)
            if file is not None and self._files.inode(path) != file.inode:
                self._open.pop(path).close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()


def make_sparse(files: Files, fresh: Path, path: Path, size: int) -> None:
    """Create a file of `size` zero bytes without blocks under `fresh`, and rename it to its name."""
    if files.exists(fresh):
        files.remove(fresh)
    with files.create(fresh) as file:
        file.resize(size)
    files.rename(fresh, path)


class QueueFolder:
    """The files of one queue. Not thread-safe; the dispatcher's lock guards it.

    `min_offset` and `max_offset` are kept by the caller; this class knows only files and entries.
    """

    def __init__(self, files: Files, pool: OpenFiles, folder: Path, entries_per_file: int) -> None:
        self._files = files
        self._pool = pool
        # Cached: a reader uses both each time, and creating a path costs more than the check itself.
        self.folder, self.topic_folder = folder, folder.parent
        self._per_file = entries_per_file
        self.bases: list[int] = []
        self._paths: dict[int, Path] = {}

    @property
    def file_bytes(self) -> int:
        """Size of one file."""
        return self._per_file * QUEUE_ENTRY_SIZE

    def path(self, base: int) -> Path:
        """Return the path of the file whose first entry is `base`."""
        path = self._paths.get(base)
        if path is None:
            # Nearly always the first or last one again; a caller that keys files by path then hashes it once.
            if len(self._paths) >= _PATHS_MAX:
                self._paths.clear()
            path = self._paths[base] = self.folder / segment_name(base * QUEUE_ENTRY_SIZE)
        return path

    def scan(self, *, cut_too: bool = False) -> Iterator[Entry]:
        """List the folder: register the valid files, yield all other entries.

        With `cut_too`, files that are too short are valid up to their length: a reader repairs nothing.
        """
        bases = []
        for entry in self._files.entries(self.folder):
            is_whole = entry.size == self.file_bytes or (cut_too and entry.size < self.file_bytes)
            if entry.is_file and is_whole and is_whole_name(entry.name, self.file_bytes):
                bases.append(int(entry.name) // QUEUE_ENTRY_SIZE)
            else:
                yield entry
        for gone in set(self.bases).difference(bases):
            # Another process removed it; an open descriptor would keep its blocks.
            self._pool.forget(self.path(gone))
        for kept in set(self.bases).intersection(bases):
            self._pool.forget_replaced(self.path(kept))
        self.bases = sorted(bases)

    def read(self, start: int, stop: int) -> Entries:
        """Return the entries [start, stop), unchecked, up to the first missing file."""
        return np.frombuffer(self.read_bytes(start, stop), ENTRY.dtype)

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Return the bytes of the entries [start, stop), unchecked, up to the first missing file."""
        parts = []
        at = start
        while at < stop:
            base = at - at % self._per_file
            count = min(stop, base + self._per_file) - at
            position = (at - base) * QUEUE_ENTRY_SIZE
            data = self._pool.read(self.path(base), count * QUEUE_ENTRY_SIZE, position)
            parts.append(data[: len(data) - len(data) % QUEUE_ENTRY_SIZE])
            if len(data) < count * QUEUE_ENTRY_SIZE:
                break
            at += count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def place(self, ordinal: int) -> int:
        """Return the log offset in one entry; -1 if there is no entry, or no file."""
        log_offset, size = self.entry(ordinal)
        return log_offset if 0 < size < PRE_BLANK_SIZE else -1

    def is_absent(self, ordinal: int) -> bool:
        """Return whether there is no entry, not even a pre-blank one."""
        return self.entry(ordinal)[1] <= 0

    def entry(self, ordinal: int) -> tuple[int, int]:
        """Return log offset and size in one entry, unchecked; zeros if there is no file."""
        base = self.file_base(ordinal)
        position = (ordinal - base) * QUEUE_ENTRY_SIZE
        data = self._pool.read(self.path(base), _PLACE.size, position)
        log_offset, size = _PLACE.unpack(data) if len(data) == _PLACE.size else (0, 0)
        return log_offset, size

    def is_current(self, ordinal: int) -> bool:
        """Return whether the open file of an entry still has its name."""
        return self._pool.is_current(self.path(self.file_base(ordinal)))

    def write(self, start: int, data: bytes) -> Iterator[Path]:
        """Write entries from ordinal `start` on; yield the paths of the files written."""
        done = 0
        while done < len(data):
            at = start + done // QUEUE_ENTRY_SIZE
            base = at - at % self._per_file
            room = (base + self._per_file - at) * QUEUE_ENTRY_SIZE
            piece = data[done : done + room]
            path = self.path(base)
            self._pool.write(path, piece, (at - base) * QUEUE_ENTRY_SIZE)
            yield path
            done += len(piece)

    def file_base(self, ordinal: int) -> int:
        """Return the first ordinal of the file that holds `ordinal`."""
        return ordinal - ordinal % self._per_file

    def stop_of(self, base: int) -> int:
        """Return the ordinal after the last of the file whose first entry is `base`."""
        return base + self._per_file

    def make_file(self, base: int, side_folder: Path) -> None:
        """Create one file of full size, all zero, atomically."""
        name = f"{self.folder.parent.name[:64]}-{self.folder.name}-{base}"
        make_sparse(self._files, side_folder / f"new-{name}", self.path(base), self.file_bytes)
        self.bases = sorted({*self.bases, base})

    def scan_end(self) -> int:
        """Return the ordinal after the last present entry, even if there are holes before it."""
        for base in reversed(self.bases):
            stop = -(-self._pool.data_end(self.path(base)) // QUEUE_ENTRY_SIZE)
            chunk = _FIRST_READ_ENTRIES
            while stop > 0:
                start, chunk = max(stop - chunk, 0), _READ_ENTRIES
                found = _last_present(self.read_bytes(base + start, base + stop))
                if found >= 0:
                    return base + start + found + 1
                stop = start
        return self.bases[0] if self.bases else 0

    def first_from(self, log_offset: int, low: int, high: int) -> int:
        """Return the first ordinal in [low, high) with a record at or after `log_offset`, or `high`.

        Scans from the front instead of a binary search: one corrupt entry must not hide the valid ones before it.
        """
        if low < high and self.place(low) >= max(log_offset, 0):
            # Nearly always the case, and a hundred thousand queues may be opened.
            return low
        at = low
        while at < high:
            entries = self.read(at, min(at + _READ_ENTRIES, high))
            if len(entries) == 0:
                at = min((base for base in self.bases if base > at), default=high)
                continue
            found = np.nonzero(effective(entries) >= max(log_offset, 0))[0]
            if len(found):
                return at + int(found[0])
            at += len(entries)
        return high

    def scan_below(self, log_offset: int, low: int, high: int) -> int:
        """Return the ordinal after the last entry in [low, high) of a record before `log_offset`, or `low`.

        Correct even if there are holes; pre-blank entries that follow are included.
        """
        if low < high and 0 <= self.place(high - 1) < log_offset:
            return high
        stop, chunk = high, _FIRST_READ_ENTRIES
        while stop > low:
            start = max(stop - chunk, low)
            offsets = effective(self.read_padded(start, stop))
            below = np.nonzero((offsets >= 0) & (offsets < log_offset))[0]
            if len(below):
                return self._over_blanks(start + int(below[-1]) + 1, high)
            stop, chunk = start, _READ_ENTRIES
        return self._over_blanks(low, high)

    def _over_blanks(self, ordinal: int, high: int) -> int:
        while ordinal < high:
            entry = self.read(ordinal, ordinal + 1)
            if len(entry) == 0 or entry["size"][0] != PRE_BLANK_SIZE:
                break
            ordinal += 1
        return ordinal

    def read_padded(self, start: int, stop: int) -> Entries:
        """Return the entries [start, stop); those of a missing file are zero."""
        parts, at = [], start
        while at < stop:
            end = min(stop, self.file_base(at) + self._per_file)
            found = self.read(at, end)
            parts += [found, np.zeros(end - at - len(found), ENTRY.dtype)]
            at = end
        return np.concatenate(parts)

    def cut(self, ordinal: int) -> list[Path]:
        """Erase every entry from `ordinal` on; returns the paths touched or removed."""
        touched = []
        for base in list(self.bases):
            path = self.path(base)
            if base >= ordinal and base != self.bases[0]:
                self.remove(base)
            elif base + self._per_file > ordinal:
                position = max(ordinal - base, 0) * QUEUE_ENTRY_SIZE
                self._pool.erase(path, position, self.file_bytes)
            else:
                continue
            touched.append(path)
        return touched

    def remove(self, base: int) -> None:
        """Remove one file."""
        path = self.path(base)
        self._pool.forget(path)
        self._files.remove(path)
        self.bases.remove(base)


def is_whole_name(name: str, file_bytes: int) -> bool:
    """Return whether a name is valid for a queue file, if all files have this size."""
    if not (name.isascii() and name.isdigit()):
        return False
    return int(name) <= _BYTE_MAX and int(name) % file_bytes == 0


def effective(entries: Entries) -> Int64s:
    """Return log offsets; -1 for absent and pre-blank entries."""
    offsets = entries["log_offset"].astype(np.int64)
    sizes = entries["size"]
    offsets[(sizes <= 0) | (sizes == PRE_BLANK_SIZE)] = -1
    return offsets


def record_ends(data: bytes) -> Iterator[int]:
    """Yield the log offset after the record of each entry that has one."""
    for position in range(0, len(data) - QUEUE_ENTRY_SIZE + 1, QUEUE_ENTRY_SIZE):
        log_offset, size = _PLACE.unpack_from(data, position)
        if 0 < size < PRE_BLANK_SIZE:
            yield log_offset + size


def first_absent(data: bytes) -> int | None:
    """Return the number of the first entry without a size above 0; None if there is none."""
    for number in range(len(data) // QUEUE_ENTRY_SIZE):
        if _PLACE.unpack_from(data, number * QUEUE_ENTRY_SIZE)[1] <= 0:
            return number
    return None


def _last_present(data: bytes) -> int:
    """Return the number of the last entry with a size above 0; -1 if there is none.

    Without numpy, which a command that only asks how many messages there are need not import.
    """
    # The bytes after the last entry are zeros as a rule.
    last = -(-len(data.rstrip(b"\0")) // QUEUE_ENTRY_SIZE) - 1
    for number in range(last, -1, -1):
        if _PLACE.unpack_from(data, number * QUEUE_ENTRY_SIZE)[1] > 0:
            return number
    return -1


# --- extension files

_UNIT = RowType(
    [("size", ">i2"), ("tag_code", ">i8"), ("store_time_ms", ">i8"), ("bitmap_bytes", ">i2")]
)
_UNIT_SIZE = _UNIT.itemsize
# A file has this number of free bytes after each unit.
_END_BYTES = 4
_FILE_BYTES_MIN, _FILE_BYTES_MAX = _UNIT_SIZE + _END_BYTES, 0x7FFFFFFF
# RocketMQ's default, for files that do not all have one size.
_FILE_BYTES = 48 << 20
_LONG_MIN = -(1 << 63)
# Tag codes up to here are addresses, as in Java.
ADDRESS_MAX = -(1 << 31) - 1
# Units farther apart than this are read separately, so that no address causes a long read.
_GAP_MAX = 4096


def are_addresses(codes: Int64s) -> Bools:
    """Return which tag codes are the address of a unit."""
    return codes <= ADDRESS_MAX


class QueueExtension:
    """The extension files of one queue, in `folder`. Not thread-safe; the dispatcher's lock guards it."""

    def __init__(self, files: Files, pool: OpenFiles, folder: Path) -> None:
        """Create one; `folder` may be missing."""
        self._files = files
        self._pool = pool
        self.folder = folder
        self._file_bytes = _FILE_BYTES
        # First bytes of the files that were there at the last look.
        self._bases: list[int] = []

    def _path(self, base: int) -> Path:
        return self.folder / segment_name(base)

    def _list_files(self) -> None:
        """Look at the folder again: it is listed when an address is first met, and another process may write it."""
        numbered = {}
        if self._files.is_folder(self.folder):
            numbered = {
                int(entry.name): entry.size
                for entry in self._files.entries(self.folder)
                if _is_numbered(entry)
            }
        sizes = set(numbered.values())
        if len(sizes) == 1 and _FILE_BYTES_MIN <= min(sizes) <= _FILE_BYTES_MAX:
            (self._file_bytes,) = sizes
        self._bases = sorted(
            base for base, size in numbered.items() if size == self._file_bytes and base % size == 0
        )

    def resolve(self, codes: Int64s) -> Bools:
        """Replace each address with the tag code of its unit; an address that leads to no unit stays.

        Returns which codes are such addresses.
        """
        units = self.units(codes)
        found = units["size"] > 0
        codes[found] = units["tag_code"][found]
        return are_addresses(codes)

    def units(self, codes: Int64s) -> Structs:
        """Return the unit at each code that is the address of one; zeros for the others."""
        made = np.zeros(len(codes), _UNIT.dtype)
        rows = np.nonzero(are_addresses(codes))[0]
        if not len(rows):
            return made
        offsets = codes[rows] - _LONG_MIN
        order = np.argsort(offsets, kind="stable")
        rows, offsets = rows[order], offsets[order]
        wanted = np.unique(offsets - offsets % self._file_bytes)
        if len(np.setdiff1d(wanted, self._bases, assume_unique=True)):
            self._list_files()
        for start, stop in self._adjacent_rows(offsets):
            units = self._read(offsets[start:stop])
            valid = self._are_valid(units, offsets[start:stop])
            made[rows[start:stop][valid]] = units[valid]
        return made

    def _adjacent_rows(self, offsets: Int64s) -> Iterator[tuple[int, int]]:
        """Yield the row ranges of ascending offsets that are close together in one existing file."""
        files = offsets // self._file_bytes
        splits = (np.diff(offsets) > _GAP_MAX) | (files[1:] != files[:-1])
        bounds = [0, *(np.nonzero(splits)[0] + 1).tolist(), len(offsets)]
        for start, stop in itertools.pairwise(bounds):
            if int(files[start]) * self._file_bytes in self._bases:
                yield start, stop

    def _read(self, offsets: Int64s) -> Structs:
        """Return the bytes at ascending offsets of one file as units; zeros after the end of the file."""
        low, high = int(offsets[0]), int(offsets[-1]) + _UNIT_SIZE
        base = low - low % self._file_bytes
        path = self._path(base)
        if self._pool.read_only:
            # Another process may have replaced the file with one of the same name.
            self._pool.forget(path)
        raw = self._pool.read(path, high - low, low - base)
        data = np.zeros(high - low, np.uint8)
        data[: len(raw)] = np.frombuffer(raw, np.uint8)
        rows = (offsets - low)[:, np.newaxis] + np.arange(_UNIT_SIZE)
        units: Structs = data[rows].reshape(-1).view(_UNIT.dtype)
        return units

    def _are_valid(self, units: Structs, offsets: Int64s) -> Bools:
        """Return which of the units read at these offsets are valid."""
        sizes = units["size"].astype(np.int64)
        bitmaps = units["bitmap_bytes"].astype(np.int64)
        fits = offsets % self._file_bytes + sizes + _END_BYTES <= self._file_bytes
        is_code = ~are_addresses(units["tag_code"].astype(np.int64))
        # After a power cut the rest of a unit may be zeros: the tag code, too, unless the time behind it is there.
        is_whole = units["store_time_ms"] > 0
        valid: Bools = (bitmaps >= 0) & (sizes == _UNIT_SIZE + bitmaps) & fits & is_code & is_whole
        return valid

    def paths(self) -> list[Path]:
        """Look at the folder again, and return its files."""
        self._list_files()
        return [self._path(base) for base in self._bases]

    def trim(self, first_needed: int) -> bool:
        """Remove the files that end at or before the unit at the address `first_needed`, never the last.

        Returns whether there was one.
        """
        limit = first_needed - _LONG_MIN - self._file_bytes
        gone = [base for base in self._bases[:-1] if base <= limit]
        for base in gone:
            self._pool.forget(self._path(base))
            self._files.remove(self._path(base))
        return bool(gone)


def _is_numbered(entry: Entry) -> bool:
    """Return whether a name is the first byte of a file that an address can reach."""
    name = entry.name
    return (
        entry.is_file and name.isascii() and name.isdigit()
        and len(name) == len(segment_name(0)) and int(name) <= ADDRESS_MAX - _LONG_MIN
    )  # fmt: skip


# --- syncs


class Syncs:
    """Makes the files that a dispatcher has written durable: one by one, or, if many, by their whole file system.

    A store of 20,000 queues that each got one message has 20,000 files and as many folders to sync, and each sync costs
    a commit of the journal. One sync of the file system writes them all in the order that suits the disk, and commits
    once; it also waits for others' writes. `penstock.files.volume` says when it is as safe as separate syncs.

    Args:
        files: the file system.
        pool: opens the queue files.
        volume_from: from this number of files and folders on, they are synced together, as a volume; 0 for never.

    Safe from any thread, except for `begin` and `close`.
    """

    def __init__(self, files: Files, pool: OpenFiles, volume_from: int) -> None:
        self._files = files
        self._pool = pool
        self._volume_from = volume_from
        self._volume: Volume | None = None

    def begin(self, folder: Path) -> None:
        """Open the file system of a folder, before the first write below it."""
        if self._volume_from and self._volume is None:
            self._volume = self._files.volume(folder)

    def sync(self, files: Collection[Path], folders: Collection[Path]) -> None:
        """Make files and folders durable; what was removed meanwhile needs no sync. Raises `OSError` on failure."""
        volume = self._volume
        # Sorted, so that a replay of a crash has the same order.
        left, folders_left = sorted(files, key=str), sorted(folders, key=str)
        if volume is not None and len(files) + len(folders) >= self._volume_from:
            volume.sync()
            # Sync the last file separately, on any volume: this flushes the disk's own cache (see `files.volume`).
            left = [path for path in left[:-1] if not _is_on(volume, path)] + left[-1:]
            folders_left = [path for path in folders_left if not _is_on(volume, path)]
        for path in left:
            self._pool.sync(path)
        for folder in folders_left:
            # Removed with its topic, meanwhile: that its name is gone is for a sync of the folder above.
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_folder(folder)

    def close(self) -> None:
        """Close the file system."""
        if self._volume is not None:
            self._volume.close()
            self._volume = None


def _is_on(volume: Volume, path: Path) -> bool:
    """Return whether a file or folder is on a volume; True for a removed one, which needs no sync."""
    try:
        return volume.holds(str(path))
    except FileNotFoundError:
        return True
