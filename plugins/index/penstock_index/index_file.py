"""One file of the hash index: header, slots, entries.

Layout (big-endian), S slots and N entries::

    0   header   beginTimestamp i64  endTimestamp i64  beginPhyOffset i64  endPhyOffset i64
                 hashSlotCount i32   indexCount i32 (the next entry's number; starts at 1)
    40  slots    S x i32             number of the newest entry of the slot, 0 for none
    40+4S        N x entry           keyHash i32  phyOffset i64  seconds i32  previousEntry i32

Entry 0 is never used, so a file takes N - 1 keys. An entry's time is in whole seconds from the header's beginTimestamp.
Entries of one slot form a chain from newest to oldest: `previousEntry` is always smaller than the entry's own number.
Any other value is corruption and is not followed. Source: spec sections 4.1 to 4.4.

The kernel stores keys through a map, so a slot at any position needs no system call. A memory write into a hole would
kill the process if the disk is full. So header and slots get their blocks before the first such key, and entries get
theirs ahead, in whole units of the page cache (see `penstock.files.blocks`). Ranges without blocks are not even read
through the map: on a tmpfs that needs space. The first keys are kept in memory, and written with plain writes as long
as they are few: a file with a few keys should have blocks only for the pages that hold them.

The write order is entry, slot, and, for all keys of a batch, the header last. So the header of a killed process never
counts an entry that does not exist. Not checksummed: rebuilt from the log.

Since 5.4 RocketMQ also writes an entry for each tag, of the text `topic#T#tag`. Penstock does not; it recognises them,
so that they do not count as corruption, nor as entries that a put must maintain.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock import StoredMessage
from penstock.contracts import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    Geometry,
    LogView,
    find_in_index_file,
    index_file_add,
    index_file_links,
)
from penstock.errors import OffsetError
from penstock.files import FOLIO_BYTES, NO_ROOM, File
from penstock.files.blocks import Blocks
from penstock.format.arrays import Int32s, Int64s, RowType, Structs, np
from penstock.format.columns import Keys, RecordColumns
from penstock.format.hashes import index_hash
from penstock.format.record import FIXED_SIZE, SIZE_AND_MAGIC
from penstock.format.validity import is_valid

HEADER = struct.Struct(">qqqqii")
ENTRY = RowType([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
assert HEADER.size == INDEX_HEADER_SIZE
assert ENTRY.itemsize == _ENTRY.size

Entries = Structs
_NAME_DIGITS = 17
# Slots are written in chunks of this number.
_SLOTS_PER_CHUNK = 1024

# Maximum of an entry's time: 68 years after the file's first record.
SECONDS_MAX = (1 << 31) - 1
# Separates topic and tag in the text of a tag's entry.
_TAG_MARK = "#T#"
# Maximum of records read in search of such entries, and of those with a tag: a broker gives all tags entries, or none.
_RECORDS_MAX, _TAGGED_MAX = 256, 16
_BYTES_MAX = 8 << 20


def is_index_name(name: str) -> bool:
    """Return whether a name is that of an index file: a time to the millisecond."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def record_time_ms(log: LogView | None, log_offset: int, default_ms: int) -> int:
    """Return the store time of a record, or a default if the log does not have the record."""
    if log is None:
        return default_ms
    try:
        size = SIZE_AND_MAGIC.unpack(log.read(log_offset, SIZE_AND_MAGIC.size))[0]
        record = log.read(log_offset, max(size, 96))
        return int(RecordColumns.parse(record, [0], log_offset).store_times_ms[0])
    except OffsetError:
        return default_ms


def draft_entries(geometry: Geometry) -> int:
    """Return how many entries a file may have as a draft: with more keys, most pages of slots have a key anyway."""
    return min(geometry.index_slots // _SLOTS_PER_CHUNK, geometry.index_entries)


class Draft:
    """Header, slots and the first entries of one file, in memory; the kernel adds keys to it. Not thread-safe."""

    def __init__(self, file: File, geometry: Geometry) -> None:
        self._file = file
        self._slots = geometry.index_slots
        self._entries = draft_entries(geometry)
        self._entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * self._slots
        size = self._entries_at + INDEX_ENTRY_SIZE * self._entries
        self._memory = bytearray(file.pread(size, 0).ljust(size, b"\0"))
        # Chunks of slots that a failed write may have left different in the file.
        self._stale: set[int] = set()

    @property
    def header(self) -> bytes:
        """The header's bytes."""
        return bytes(self._memory[:INDEX_HEADER_SIZE])

    def add(
        self, number: int, keys: Keys, log_offsets: Int64s, times_ms: Int64s, first: int
    ) -> int:
        """Add keys from entry `number` on; they must fit. If this raises, the keys are not added."""
        slots = keys.hashes[first:].astype(np.int64) % self._slots
        touched = set((slots // _SLOTS_PER_CHUNK).tolist())
        before = {chunk: self._memory[self._chunk_slice(chunk)] for chunk in touched}
        header = self.header
        added = index_file_add(
            self._memory, self._slots, self._entries, keys.rows, keys.hashes, log_offsets, times_ms, first
        )  # fmt: skip
        try:
            start = self._entries_at + INDEX_ENTRY_SIZE * number
            self._write(slice(start, start + INDEX_ENTRY_SIZE * added))
            self._stale |= touched
            self.write_stale_slots()
            self._write(slice(INDEX_HEADER_SIZE))
        except BaseException:
            for chunk, data in before.items():
                self._memory[self._chunk_slice(chunk)] = data
            self._memory[:INDEX_HEADER_SIZE] = header
            self._stale |= touched
            raise
        return added

    def write_stale_slots(self) -> None:
        """Write the slots that may be different in the file."""
        for chunk in sorted(self._stale):
            self._write(self._chunk_slice(chunk))
        self._stale.clear()

    def _chunk_slice(self, chunk: int) -> slice:
        start = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * _SLOTS_PER_CHUNK * chunk
        return slice(start, min(start + INDEX_SLOT_SIZE * _SLOTS_PER_CHUNK, self._entries_at))

    def _write(self, part: slice) -> None:
        self._file.pwrite(self._memory[part], part.start or 0)


class Header(NamedTuple):
    """The header's fields; `index_count` is the next entry's number."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    index_count: int = 1


class IndexFile:
    """One index file opened for writing. Not thread-safe."""

    def __init__(
        self, file: File, geometry: Geometry, monotonic_ms: Callable[[], int] = lambda: 0
    ) -> None:
        self.path = file.path
        self._file = file
        self._geometry = geometry
        self._monotonic_ms = monotonic_ms
        self._entries_count = geometry.index_entries
        self._entries_at = INDEX_HEADER_SIZE + 4 * geometry.index_slots
        self._size = geometry.index_file_bytes
        self._map = memoryview(file.map(self._size, writable=True))
        self._header = Header(*HEADER.unpack(file.pread(INDEX_HEADER_SIZE, 0)))
        # The blocks for the keys to come; None until header and slots have blocks.
        self._blocks: Blocks | None = None
        self._draft: Draft | None = None
        self._draft_entries = draft_entries(geometry)
        # The view of the part that has blocks; None if that part has changed.
        self._peek: Peek | None = None
        self.is_dirty = False

    @property
    def header(self) -> Header:
        """The header, from the memory into which keys are added: correct even if an interrupt cut an `add` short."""
        if self._blocks is not None:
            header = Header(*HEADER.unpack_from(self._map))
        elif self._draft is not None:
            header = Header(*HEADER.unpack(self._draft.header))
        else:
            header = self._header
        return header if header.index_count > 0 else header._replace(index_count=1)

    @property
    def is_full(self) -> bool:
        """Whether no further key fits."""
        return self.header.index_count >= self._entries_count

    @property
    def is_empty(self) -> bool:
        """Whether it holds no key."""
        return self.header.index_count <= 1

    def add(self, keys: Keys, log_offsets: Int64s, times_ms: Int64s, first: int = 0) -> int:
        """Add keys in order, from key `first` on; return how many fit. Same bytes as adding them one by one.

        `log_offsets` and `times_ms` belong to the rows that the keys name.
        """
        number = self._used
        count = min(len(keys.rows) - first, self._entries_count - number)
        if count <= 0:
            return 0
        try:
            if self._blocks is None and number + count <= self._draft_entries:
                self._draft = self._draft or Draft(self._file, self._geometry)
                return self._draft.add(number, keys, log_offsets, times_ms, first)
            self._reserve(number + count)
            return index_file_add(
                self._map, self._geometry.index_slots, self._entries_count, keys.rows, keys.hashes,
                log_offsets, times_ms, first,
            )  # fmt: skip
        finally:
            # Set last: a sync that began before the last store does not cover that store.
            self.is_dirty = True

    def _reserve(self, number: int) -> None:
        """Ensure that everything before entry `number` has blocks; raise `OSError` (ENOSPC) if that fails."""
        blocks = self._blocks or self._begin_blocks()
        stop = self._position_of(number)
        if blocks.mapped_end < stop:
            blocks.reserve(min(stop + -stop % FOLIO_BYTES, self._size))
            assert blocks.mapped_end >= stop
            self._peek = None

    def _begin_blocks(self) -> Blocks:
        """Allocate the missing blocks of header, slots and used entries: another program may have left holes."""
        if self._draft is not None:
            self._draft.write_stale_slots()
        start = self._position_of(self._used)
        blocks = Blocks(self._file, self._size, start, self._monotonic_ms, mapped=True)
        whole = start - start % FOLIO_BYTES
        if whole and not blocks.mapped_end:
            self._file.allocate_range(0, whole)
        blocks.reserve(min(whole + FOLIO_BYTES, self._size))
        self._blocks, self._peek, self._draft = blocks, None, None
        return blocks

    def _forget(self) -> None:
        """Continue without blocks and draft."""
        self._header = self.header
        if self._draft is not None:
            self._draft.write_stale_slots()
        self._blocks = self._draft = self._peek = None

    def set_header(self, header: Header) -> None:
        """Write the header."""
        self._forget()
        self._file.pwrite(HEADER.pack(*header), 0)
        self._header = header
        self.is_dirty = True

    def _position_of(self, number: int) -> int:
        return self._entries_at + number * ENTRY.itemsize

    def entries(self) -> Entries:
        """Return the entries in use; number 1 comes first."""
        return self._read().entries()

    def _read(self) -> "Peek":
        return Peek(self._file, self._geometry, self.header)

    @property
    def _used(self) -> int:
        """The number after that of the last used entry."""
        return min(max(self.header.index_count, 1), self._entries_count)

    def cut(self, keep: int, begin_ms: int, end_ms: int) -> None:
        """Keep the first `keep` entries, erase the rest, and rebuild slots and header from them.

        The times are those of the first and last record kept: the entries have only whole seconds.
        """
        kept = self.entries()[:keep].copy()
        self._forget()
        self._file.clear(self._position_of(keep + 1), self._size)
        self._file.clear(INDEX_HEADER_SIZE, self._position_of(1))
        self.is_dirty = True
        if not keep:
            self.set_header(Header())
            return
        slots, kept["previous"] = expected_chains(kept, self._geometry.index_slots)
        used = int((kept["previous"] == 0).sum())
        first, last = int(kept["log_offset"][0]), int(kept["log_offset"][-1])
        self._file.pwrite(kept.tobytes(), self._position_of(1))
        self._file.pwrite(slots.astype(">i4").tobytes(), INDEX_HEADER_SIZE)
        self.set_header(Header(begin_ms, end_ms, first, last, used, keep + 1))

    def chains_are_valid(self) -> bool:
        """Return whether slots, their count and predecessors are what adding the entries in order gives."""
        entries, table = self.entries(), self._read().slots()
        slots, previous = expected_chains(entries, self._geometry.index_slots)
        is_chained = (entries["previous"] == previous).all() and np.array_equal(table, slots)
        return bool(is_chained) and self.header.slot_count == int((previous == 0).sum())

    def peek(self) -> "Peek":
        """Return a view for look-ups; its chains are read through the map, even after the file is closed.

        They may lead to entries that are added later: these have blocks by the time a slot names them.
        """
        peek = self._peek
        if peek is None:
            peek, blocks = self._read(), self._blocks
            if blocks is not None and blocks.mapped_end >= self._position_of(self._used):
                memory = self._map[: blocks.mapped_end]
                peek = self._peek = Peek(self._file, self._geometry, self.header, memory)
        return peek

    def warm(self) -> None:
        """Make look-ups fast before a key is added, if there are many keys, and disk space for header and slots."""
        if self._used < self._draft_entries:
            return
        try:
            self._begin_blocks()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def give_back(self) -> None:
        """Release the blocks that were allocated ahead, durably."""
        blocks = self._blocks
        self._forget()
        if blocks is not None and blocks.give_back(self._position_of(self._used)):
            self._file.sync()

    def clear_ahead(self) -> None:
        """Release the blocks after the used entries, whichever process allocated them."""
        self._forget()
        self._file.punch(self._position_of(self._used), self._size)

    def sync(self) -> None:
        """Make it durable."""
        try:
            # First: a sync that began before the last store does not cover that store.
            self.is_dirty = False
            self._file.sync()
        except BaseException:
            self.is_dirty = True
            raise

    def close(self) -> None:
        """Close the file; it is unmapped with its last view."""
        self._file.close()


def seconds_since(times_ms: Int64s, begin_ms: int | Int64s) -> Int64s:
    """Return whole seconds since the base: 0 without a base or before it, capped at 2**31 - 1."""
    seconds: Int64s = np.where(np.asarray(begin_ms) > 0, (times_ms - begin_ms) // 1000, 0)
    return np.clip(seconds, 0, SECONDS_MAX)


def expected_chains(entries: Entries, slots_count: int) -> tuple[Int32s, Int32s]:
    """Return the slot table and the predecessors that adding these entries in order gives."""
    slots, previous = index_file_links(np.ascontiguousarray(entries).view(np.uint8), slots_count)
    return np.frombuffer(slots, np.int32), np.frombuffer(previous, np.int32)


def valid_count(entries: Entries, log_offset: int) -> int:
    """Return how many of the first entries are complete, in order, and of records before `log_offset`.

    A header may count entries that a power cut kept from the disk: they are zero, or come after zeros.
    """
    offsets = entries["log_offset"].astype(np.int64)
    is_absent = (offsets == 0) & (entries["hash"] == 0) & (entries["seconds"] == 0)
    is_out_of_order = offsets < np.maximum.accumulate(offsets)
    bad = np.nonzero((offsets >= log_offset) | (offsets < 0) | is_absent | is_out_of_order)[0]
    return int(bad[0]) if len(bad) else len(offsets)


class Peek:
    """A read-only view of one index file. It uses plain reads, because another process may write or remove the file.

    The process that writes the file passes its `header`, and as `memory` the leading part of the file that has blocks.
    """

    def __init__(
        self,
        file: File,
        geometry: Geometry,
        header: Header | None = None,
        memory: memoryview | None = None,
    ) -> None:
        self._file = file
        self._geometry = geometry
        self._entries_at = INDEX_HEADER_SIZE + 4 * geometry.index_slots
        self._memory = memory
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
        """Whether no further key fits, so that the file no longer changes."""
        return self.header.index_count >= self._geometry.index_entries

    def reopened(self) -> "Peek":
        """Return a new view of the same file, with its present header."""
        return Peek(self._file, self._geometry)

    def mapped(self) -> "Peek":
        """Return a view of the same file through a map, if it is full, complete, and without a hole; else itself."""
        size = self._geometry.index_file_bytes
        if not self.is_full or self._file.size != size or self._file.hole_from(0) < size:
            return self
        memory = memoryview(self._file.map(size, writable=False))
        return Peek(self._file, self._geometry, self.header, memory)

    def candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterable[int]:
        """Return log offsets of the entries with that hash, newest first, if their times may be in the range.

        An entry that the header does not count yet is included: it was written before its slot.
        """
        if self._memory is None:
            return self._read_candidates(key_hash, begin_ms, end_ms)
        return find_in_index_file(self._memory, self._geometry, key_hash, begin_ms, end_ms)

    def _read_candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Do the same as `penstock.contracts.index_entries.find_in_index_file`, with plain reads."""
        head = self.header
        if head.index_count <= 1 or head.begin_ms > end_ms or head.end_ms < begin_ms:
            return
        for log_offset, seconds in self._chain(key_hash):
            at = head.begin_ms + seconds * 1000
            # The first entry's seconds count from another base: the header's previous time (the end of the full file).
            # Without a base the time is unknown, and the maximum stands for all later times.
            is_late_enough = at + 1000 > begin_ms or seconds == SECONDS_MAX
            is_timed = at - 1000 <= end_ms and is_late_enough
            if log_offset == head.begin_offset or head.begin_ms <= 0 or is_timed:
                yield log_offset

    def _chain(self, key_hash: int) -> Iterator[tuple[int, int]]:
        """Yield (log offset, seconds) of the entries with that hash, newest first; stop at an invalid link."""
        read, entries_at = self._file.pread, self._entries_at
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
            # Valid entries only point to smaller numbers; anything else could loop.
            bound, number = number, previous

    def entries(self) -> Entries:
        """Return the used entries, as far as the file has them; number 1 comes first."""
        return np.frombuffer(self._newest_bytes(self._geometry.index_entries), ENTRY.dtype)

    def newest(self, most: int) -> list[tuple[int, int]]:
        """Return log offset and hash of the last `most` of the used entries, in write order."""
        return [(found[1], found[0]) for found in _ENTRY.iter_unpack(self._newest_bytes(most))]

    def _newest_bytes(self, most: int) -> bytes:
        count = min(max(self.header.index_count, 1), self._geometry.index_entries)
        first = max(count - most, 1)
        data = self._file.pread((count - first) * ENTRY.itemsize, self.position_of(first))
        return bytes(data[: len(data) - len(data) % ENTRY.itemsize])

    def slots(self) -> Int32s:
        """Return the slot table."""
        data = self._file.pread(4 * self._geometry.index_slots, INDEX_HEADER_SIZE)
        return np.frombuffer(data, ">i4").astype(np.int32)

    def expected(self, entries: Entries) -> tuple[Int32s, Int32s]:
        """Return the slot table and the predecessors that these entries require."""
        return expected_chains(entries, self._geometry.index_slots)

    def position_of(self, number: int) -> int:
        """Return the byte position at which an entry begins."""
        return self._entries_at + number * ENTRY.itemsize

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# --- entries of tags


def has_tag_keys(peeks: Iterable[Peek], log: LogView) -> bool:
    """Return whether the newest records with a tag have tag keys in the index; `peeks`, newest first."""
    records = tagged = size_read = 0
    for peek in peeks:
        hashes: dict[int, set[int]] = {}
        for at, key_hash in reversed(peek.newest(_RECORDS_MAX * 4)):
            hashes.setdefault(at, set()).add(key_hash)
        for at, there in hashes.items():
            message = _message(log, at)
            if message is None:
                continue
            records, size_read = records + 1, size_read + message.size
            if message.tag:
                if index_hash(f"{message.topic}{_TAG_MARK}{message.tag}") in there:
                    return True
                tagged += 1
            if records >= _RECORDS_MAX or tagged >= _TAGGED_MAX or size_read >= _BYTES_MAX:
                return False
    return False


def _message(log: LogView, at: int) -> StoredMessage | None:
    """Return the record at a log offset, None if there is no valid one."""
    if at < log.min_offset:
        return None
    try:
        size = int(SIZE_AND_MAGIC.unpack(log.read(at, SIZE_AND_MAGIC.size))[0])
        record = log.read(at, max(size, FIXED_SIZE))
    except OffsetError:
        return None
    return StoredMessage(bytes(record)) if is_valid(record, at) else None
