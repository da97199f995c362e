"""One file of the hash index: header, slots, entries.

Layout (big-endian), S slots and N entries::

    0   header   beginTimestamp i64  endTimestamp i64  beginPhyOffset i64  endPhyOffset i64
                 hashSlotCount i32   indexCount i32 (the next entry's number; starts at 1)
    40  slots    S x i32             number of the newest entry of the slot, 0 for none
    40+4S        N x entry           keyHash i32  phyOffset i64  seconds i32  previousEntry i32

Entry 0 is never used, so a file takes N - 1 keys. An entry's time is in whole seconds from the header's
beginTimestamp. Entries of one slot form a chain from newest to oldest: `previousEntry` is always
smaller than the entry's own number, so a chain that is not so is damage and is not followed.
Source: spec sections 4.1 to 4.4.

The file is sparse and written with plain writes: a store through a map into a hole would kill the process when the disk is
full, and slots lie anywhere. Whoever writes it keeps its slots in memory.

Written in the order entries, slots, header: a killed process leaves no header that counts an entry
which is not there. Not checksummed: rebuilt from the log.
"""

import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.blocks import Blocks
from penstock.columns import Columns
from penstock.contracts import LogView
from penstock.errors import OffsetError
from penstock.files import File, Files
from penstock.geometry import INDEX_HEADER_SIZE, Geometry
from penstock.javatext import Int32s, Int64s
from penstock.record import SIZE_AND_MAGIC

HEADER = struct.Struct(">qqqqii")
ENTRY = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
assert HEADER.size == INDEX_HEADER_SIZE
assert ENTRY.itemsize == _ENTRY.size

Entries = npt.NDArray[np.void]
_NAME_DIGITS = 17
# Slots are written in pieces of so many.
_SLOTS_A_PIECE = 1024

# An entry's time stops here: 68 years after the file's first record.
SECONDS_MAX = (1 << 31) - 1


def is_index_name(name: str) -> bool:
    """Say whether a file's name is that of an index file: a time to the millisecond."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def record_time_ms(log: LogView | None, log_offset: int, default_ms: int) -> int:
    """Return the store time of a record, or a default where the log cannot tell."""
    if log is None:
        return default_ms
    try:
        size = SIZE_AND_MAGIC.unpack(log.read(log_offset, SIZE_AND_MAGIC.size))[0]
        return int(Columns(log.read(log_offset, max(size, 96)), [0], log_offset).store_times_ms[0])
    except OffsetError:
        return default_ms


class Header(NamedTuple):
    """The header's fields; `index_count` is the next entry's number."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    index_count: int = 1


class IndexFile:
    """One index file being written. Not thread-safe."""

    def __init__(
        self, file: File, geometry: Geometry, monotonic_ms: Callable[[], int] = lambda: 0
    ) -> None:
        self.path = file.path
        self._file = file
        self._geometry = geometry
        self._slots_count = geometry.index_slots
        self._entries_count = geometry.index_entries
        # Read-only: chains are followed in it, also when the file is closed.
        self._map = file.map(geometry.index_file_bytes, writable=False)
        self._entries_at = INDEX_HEADER_SIZE + 4 * geometry.index_slots
        self._slots = _read_slots(file, geometry.index_slots)
        # Slots that may be other on the disk than in memory.
        self._doubtful = np.zeros(0, np.int64)
        header = Header(*HEADER.unpack(file.pread(INDEX_HEADER_SIZE, 0)))
        self.header = header if header.index_count > 0 else header._replace(index_count=1)
        self._blocks = Blocks(
            file, geometry.index_file_bytes, self._position_of(self._used), monotonic_ms
        )
        self.is_dirty = False

    @property
    def is_full(self) -> bool:
        """Whether no further key fits."""
        return self.header.index_count >= self._entries_count

    @property
    def is_empty(self) -> bool:
        """Whether it holds no key."""
        return self.header.index_count <= 1

    def add(self, hashes: Int32s, log_offsets: Int64s, times_ms: Int64s) -> int:
        """Add keys in order; returns how many fitted. Same bytes as adding them one by one."""
        head = self.header
        count = min(len(hashes), self._entries_count - head.index_count)
        if count <= 0:
            return 0
        hashes, log_offsets, times_ms = hashes[:count], log_offsets[:count], times_ms[:count]
        numbers = np.arange(head.index_count, head.index_count + count, dtype=np.int64)
        slots = hashes.astype(np.int64) % self._slots_count
        previous = self._chain(slots, numbers)
        begin_ms, begin_offset = head.begin_ms, head.begin_offset
        seconds = seconds_since(times_ms, begin_ms)
        if head.index_count == 1:
            # The first entry of a file counts from what the header said before (the old file's end,
            # after a roll), and only then sets the base for the others.
            begin_ms, begin_offset = int(times_ms[0]), int(log_offsets[0])
            seconds[1:] = seconds_since(times_ms[1:], begin_ms)
        rows = np.empty(count, ENTRY)
        rows["hash"], rows["log_offset"] = hashes, log_offsets
        rows["seconds"], rows["previous"] = seconds, previous
        self._blocks.reserve(self._position_of(head.index_count + count))
        self._write(head.index_count, rows, slots, Header(
            begin_ms, int(times_ms[-1]), begin_offset, int(log_offsets[-1]),
            head.slot_count + int((previous == 0).sum()), head.index_count + count,
        ))  # fmt: skip
        return count

    def _write(self, number: int, rows: Entries, slots: Int64s, header: Header) -> None:
        """Write entries from `number` on, their slots, and the header; when this raises they do not count."""
        before = self._slots[slots]
        try:
            self._file.pwrite_pieces(rows.tobytes(), self._position_of(number))
            # Of a slot given twice, the last stays.
            self._slots[slots] = np.arange(number, number + len(rows))
            self._put_slots(np.concatenate([slots, self._doubtful]))
            self.set_header(header)
        except OSError:
            self._slots[slots] = before
            # Some pieces of them may be written, and other keys may come next.
            self._doubtful = np.concatenate([self._doubtful, slots])
            raise
        self._doubtful = self._doubtful[:0]

    def _chain(self, slots: Int64s, numbers: Int64s) -> Int64s:
        """Return each new entry's predecessor: in the file, or earlier in the same batch."""
        previous = self._slots[slots].astype(np.int64)
        previous[(previous < 0) | (previous >= numbers[0])] = 0
        order = np.argsort(slots, kind="stable")
        same = slots[order][1:] == slots[order][:-1]
        previous[order[1:][same]] = numbers[order[:-1][same]]
        return previous

    def _put_slots(self, slots: Int64s) -> None:
        """Write the pieces of the table that hold these slots, or all of it where that is most of it."""
        size = _SLOTS_A_PIECE
        pieces = np.unique(slots // size)
        if 2 * size * len(pieces) > self._slots_count:
            pieces, size = pieces[:1] * 0, self._slots_count
        for piece in pieces.tolist():
            data = self._slots[piece * size : (piece + 1) * size].tobytes()
            self._file.pwrite_pieces(data, INDEX_HEADER_SIZE + piece * size * _SLOT.size)

    def set_header(self, header: Header) -> None:
        """Write the header."""
        self.is_dirty = True
        self._file.pwrite(HEADER.pack(*header), 0)
        self.header = header

    def _position_of(self, number: int) -> int:
        return self._entries_at + number * ENTRY.itemsize

    def entries(self) -> Entries:
        """Return the used entries, as they are now; number 1 comes first."""
        return self.peek().entries()

    @property
    def _used(self) -> int:
        """The number behind that of the last used entry."""
        return min(max(self.header.index_count, 1), self._entries_count)

    def cut(self, keep: int, begin_ms: int, end_ms: int) -> None:
        """Keep the first `keep` entries, erase the rest, and make slots and header anew from them.

        The times are those of the first and last record kept: the entries have only whole seconds.
        """
        kept = self.entries()[:keep].copy()
        slots = kept["hash"].astype(np.int64) % self._slots_count
        self._file.clear(self._position_of(keep + 1), self._geometry.index_file_bytes)
        self._file.clear(INDEX_HEADER_SIZE, self._position_of(1))
        self._slots[:] = 0
        self.is_dirty = True
        if keep:
            previous = self._chain(slots, np.arange(1, keep + 1, dtype=np.int64))
            kept["previous"] = previous
            used = int((previous == 0).sum())
            last = int(kept["log_offset"][-1])
            first = int(kept["log_offset"][0])
            header = Header(begin_ms, end_ms, first, last, used, keep + 1)
            self._write(1, kept, slots, header)
        else:
            self.set_header(Header())

    def chains_are_sound(self) -> bool:
        """Say whether slots, their count and predecessors are what adding the entries in order gives."""
        entries = self.entries()
        slots, previous = expected_chains(entries, self._slots_count)
        is_chained = (entries["previous"] == previous).all() and (self._slots == slots).all()
        return bool(is_chained) and self.header.slot_count == int((previous == 0).sum())

    def peek(self) -> "Peek":
        """Return a look at it as it is now; its chains are read through the map, also when the file is closed."""
        mapped, slots, blocks = self._map, self._slots, self._blocks
        first, used = self._entries_at, self._position_of(self._used)

        def read(size: int, at: int) -> bytes:
            if at < first:
                return _SLOT.pack(int(slots[(at - INDEX_HEADER_SIZE) // _SLOT.size]))
            # Where there are no blocks nothing is looked at through the map: on a tmpfs even that needs room. Slots
            # name entries that were added after this look was taken; their blocks came before them.
            return mapped[at : at + size] if at + size <= max(used, blocks.end) else b""

        return Peek(self._file, self._geometry, self.header, read)

    def give_back(self) -> None:
        """Return the blocks that were allocated ahead to the disk, durably."""
        if self._blocks.give_back(self._position_of(self._used)):
            self._file.sync()

    def clear_ahead(self) -> None:
        """Give up whatever lies after the used entries, whoever allocated it."""
        self._file.punch(self._position_of(self._used), self._geometry.index_file_bytes)

    def sync(self) -> None:
        """Make it durable."""
        self.is_dirty = False
        try:
            self._file.sync()
        except OSError:
            self.is_dirty = True
            raise

    def close(self) -> None:
        """Let go of the file; the map goes with its last look."""
        self._file.close()


def _read_slots(file: File, count: int) -> Int32s:
    data = file.pread(4 * count, INDEX_HEADER_SIZE).ljust(4 * count, b"\0")
    return np.frombuffer(data, ">i4").copy()


def seconds_since(times_ms: Int64s, begin_ms: int | Int64s) -> Int64s:
    """Return whole seconds since the base: 0 without a base or before it, capped at 2**31 - 1."""
    seconds: Int64s = np.where(np.asarray(begin_ms) > 0, (times_ms - begin_ms) // 1000, 0)
    return np.clip(seconds, 0, SECONDS_MAX)


def expected_chains(entries: Entries, slots_count: int) -> tuple[Int32s, Int32s]:
    """Return the slot table and the predecessors that adding these entries in order gives."""
    at = entries["hash"].astype(np.int64) % slots_count
    numbers = np.arange(1, len(entries) + 1, dtype=np.int32)
    slots = np.zeros(slots_count, np.int32)
    slots[at] = numbers
    order = np.argsort(at, kind="stable")
    same = at[order][1:] == at[order][:-1]
    previous = np.zeros(len(entries), np.int32)
    previous[order[1:][same]] = numbers[order[:-1][same]]
    return slots, previous


def sound_count(entries: Entries, log_offset: int) -> int:
    """Return how many of the first entries are whole, in order, and of records before `log_offset`.

    A header may count entries that a power cut kept from the disk: they are zero, or behind zeros.
    """
    offsets = entries["log_offset"].astype(np.int64)
    is_absent = (offsets == 0) & (entries["hash"] == 0) & (entries["seconds"] == 0)
    is_out_of_order = offsets < np.maximum.accumulate(offsets)
    bad = np.nonzero((offsets >= log_offset) | (offsets < 0) | is_absent | is_out_of_order)[0]
    return int(bad[0]) if len(bad) else len(offsets)


class Readers:
    """A few index files kept open for look-ups; one that is dropped closes when nobody reads it. Safe from any thread."""

    def __init__(self, files: Files, folder: Path, geometry: Geometry, limit: int) -> None:
        self._files = files
        self._folder = folder
        self._geometry = geometry
        self._limit = max(min(limit, files.descriptors_max // 16), 2)
        self._open: dict[str, Peek] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> "Peek":
        """Return a look at an open file as it is now; `FileNotFoundError` where it is gone."""
        peek = self._open.get(name)
        if peek is not None:
            # What is full has its last header.
            return peek if peek.is_full else peek.anew()
        with self._lock:
            if len(self._open) >= self._limit:
                self._open.pop(next(iter(self._open)))
            peek = Peek(self._files.open(self._folder / name), self._geometry)
            self._open[name] = peek
            return peek

    def close(self) -> None:
        """Forget all; each is closed when the last look-up in it has ended."""
        with self._lock:
            self._open.clear()


class Peek:
    """One index file as it lies there, read by plain reads: another process may write or remove it.

    Whoever writes it himself gives its `header`, and how its bytes are `read`.
    """

    def __init__(
        self,
        file: File,
        geometry: Geometry,
        header: Header | None = None,
        read: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._file = file
        self._geometry = geometry
        self._entries_at = INDEX_HEADER_SIZE + 4 * geometry.index_slots
        self._read = read or file.pread
        self.header = header or self._read_header()

    def _read_header(self) -> Header:
        raw = self._file.pread(INDEX_HEADER_SIZE, 0)
        return Header(*HEADER.unpack(raw)) if len(raw) == INDEX_HEADER_SIZE else Header()

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def is_full(self) -> bool:
        """Whether no further key fits, so that nothing of it changes any more."""
        return self.header.index_count >= self._geometry.index_entries

    def anew(self) -> "Peek":
        """Return another look at the same file."""
        return Peek(self._file, self._geometry)

    def chain(self, key_hash: int) -> Iterator[tuple[int, int]]:
        """Yield (log offset, seconds) of the entries with that hash, newest first; ends where hostile.

        One that the header does not count yet is yielded as well: it was written before its slot.
        """
        read, entries_at = self._read, self._entries_at
        raw = read(_SLOT.size, INDEX_HEADER_SIZE + 4 * (key_hash % self._geometry.index_slots))
        number = _SLOT.unpack(raw)[0] if len(raw) == _SLOT.size else 0
        bound = self._geometry.index_entries
        while 0 < number < bound:
            raw = read(_ENTRY.size, entries_at + number * _ENTRY.size)
            if len(raw) < _ENTRY.size:
                return
            found, log_offset, seconds, previous = _ENTRY.unpack(raw)
            if found == key_hash and log_offset >= 0:
                yield log_offset, seconds
            # Entries only ever point to smaller numbers; anything else would loop.
            bound, number = number, previous

    def entries(self) -> Entries:
        """Return the used entries, as far as the file has them; number 1 comes first."""
        return self.newest(self._geometry.index_entries)

    def newest(self, most: int) -> Entries:
        """Return the last `most` of the used entries, in the order they were written."""
        count = min(max(self.header.index_count, 1), self._geometry.index_entries)
        first = max(count - most, 1)
        data = self._file.pread((count - first) * ENTRY.itemsize, self.position_of(first))
        return np.frombuffer(data[: len(data) - len(data) % ENTRY.itemsize], ENTRY)

    def slots(self) -> Int32s:
        """Return the slot table."""
        data = self._file.pread(4 * self._geometry.index_slots, INDEX_HEADER_SIZE)
        return np.frombuffer(data, ">i4").astype(np.int32)

    def expected(self, entries: Entries) -> tuple[Int32s, Int32s]:
        """Return the slot table and the predecessors that these entries call for."""
        return expected_chains(entries, self._geometry.index_slots)

    def position_of(self, number: int) -> int:
        """Return the byte at which an entry begins."""
        return self._entries_at + number * ENTRY.itemsize

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
