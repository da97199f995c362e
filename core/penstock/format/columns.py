"""Many records at once, as columns: each record's numbers, and the positions of its parts.

A row holds the fields of a record as the kernel parses it (`Record` in `_kernel/record.h`): `RecordColumns.parse` for
records at known positions, `scan` for consecutive records. Bytes from disk may be hostile: a row that is not `valid`
holds only its position, size and magic, and nothing is read outside of the window.

A slice of text (properties, tags, keys) is a start and a size in a buffer of bytes. The kernel finds the slices; no
Python object is created for a row, except by `RowPieces.texts`.
"""

import functools
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

from penstock import _kernel
from penstock.format.arrays import Bools, Bytes, Int32s, Int64s, RowType, Structs, np
from penstock.format.record import TRANSACTION_MASK
from penstock.format.validity import NO_COVERAGE, Coverage


class RowPieces(NamedTuple):
    """Slices of text: the row that each belongs to, and its position in `data`."""

    data: bytes | memoryview
    rows: Int64s
    starts: Int64s
    sizes: Int64s

    def texts(self) -> list[bytes]:
        """Return the slices as bytes objects."""
        ends = (self.starts + self.sizes).tolist()
        pieces = zip(self.starts.tolist(), ends, strict=True)
        return [bytes(self.data[start:end]) for start, end in pieces]


class PropertyColumns:
    """The properties texts of many records. If a name occurs twice in one text, the last value counts, as in Java."""

    def __init__(self, window: bytes | memoryview, fields: "np.ndarray") -> None:
        self._window = window
        self._fields = fields

    def named(self, name: bytes) -> RowPieces:
        """Return the values of one name, at most one a row, ordered by row."""
        rows, starts, sizes = _kernel.named(self._window, self._fields, name)
        return RowPieces(
            self._window,
            np.frombuffer(rows, np.int64),
            np.frombuffer(starts, np.int64),
            np.frombuffer(sizes, np.int64),
        )

    def indexed(self) -> "Indexed":
        """Return the tag code of each row, and all keys."""
        codes, *keys = _kernel.indexed(self._window, self._fields)
        return Indexed(np.frombuffer(codes, np.int64), hashed(*keys))

    def tag_keys(self) -> "Keys":
        """Return the tag of each row that has one, hashed as RocketMQ 5.4 indexes it."""
        return hashed(*_kernel.tag_keys(self._window, self._fields))


class Keys(NamedTuple):
    """The keys of a batch: `rows` are their records' rows, `hashes` are Java's hashes of topic, `#` and key."""

    rows: Int64s
    hashes: Int32s


class Indexed(NamedTuple):
    """The values of a batch that dispatchers index.

    Attributes:
        tag_codes: the tag code of each row's queue entry: the tag's Java hash, 0 if there is no tag.
        keys: every key, by row, UNIQ_KEY first, then KEYS split at single spaces.
    """

    tag_codes: Int64s
    keys: Keys


@functools.cache
def no_keys() -> Keys:
    """Return the keys of records without keys."""
    return Keys(np.frombuffer(b"", np.int64), np.frombuffer(b"", np.int32))


def hashed(rows: bytes, hashes: bytes) -> Keys:
    """Return keys from the kernel's columns."""
    return Keys(np.frombuffer(rows, np.int64), np.frombuffer(hashes, np.int64).astype(np.int32))


Buffer = bytes | memoryview

# `Record` of `_kernel/record.h`, which lists the fields.
ROW = RowType([(name, kind) for name, kind in _kernel.ROW_FIELDS])
assert ROW.itemsize == _kernel.ROW_BYTES
Rows = Structs


def _numbers(name: str, doc: str) -> Any:
    """Return a property for one field of all rows."""

    def numbers(self: "RecordColumns") -> Int64s:
        found: Int64s = self.fields[name].astype(np.int64)
        return found

    numbers.__doc__ = doc
    return property(numbers)


class RecordColumns:
    """Records in `window`; one row a record, each column one value a row. Safe from any thread.

    Attributes:
        window: the bytes that hold the records.
        fields: the rows (`ROW`).
        log_offsets: byte addresses in the commit log.
    """

    def __init__(self, window: Buffer, fields: Rows, log_offsets: Int64s) -> None:
        self.window = window
        self.fields = fields
        self.log_offsets = log_offsets

    @classmethod
    def parse(
        cls,
        window: Buffer,
        positions: Sequence[int] | Int64s,
        base: int,
        *,
        log_offsets: Int64s | None = None,
    ) -> Self:
        """Parse the records at `positions` in `window`.

        `base` is the log offset of the window's first byte. If the window has gaps, pass the log offset of each record
        as `log_offsets` instead.
        """
        places = np.ascontiguousarray(positions, np.int64)
        fields = np.frombuffer(_kernel.parse(window, places), ROW.dtype)
        return cls(window, fields, places + base if log_offsets is None else log_offsets)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def raw(self) -> Bytes:
        """The window's bytes."""
        return np.frombuffer(self.window, np.uint8)

    positions: Int64s = _numbers("position", "Where records begin, bytes from the window's start.")
    sizes: Int64s = _numbers("size", "TOTALSIZE.")
    queues: Int64s = _numbers("queue", "QUEUEID.")
    flags: Int64s = _numbers("flag", "FLAG.")
    queue_offsets: Int64s = _numbers("queue_offset", "QUEUEOFFSET.")
    sys_flags: Int64s = _numbers("sys_flag", "SYSFLAG.")
    store_times_ms: Int64s = _numbers("store_ms", "STORETIMESTAMP.")
    reconsume_times: Int64s = _numbers("reconsume", "RECONSUMETIMES.")
    prepared_offsets: Int64s = _numbers("prepared", "PREPAREDTRANSACTIONOFFSET.")
    topic_sizes: Int64s = _numbers("topic_size", "Topic lengths in bytes.")
    property_sizes: Int64s = _numbers("text_size", "Properties text lengths in bytes.")

    @property
    def transaction_types(self) -> Int64s:
        """The transaction bits of SYSFLAG: 0, PREPARED, COMMIT or ROLLBACK."""
        return self.sys_flags & TRANSACTION_MASK

    @property
    def topic_starts(self) -> Int64s:
        """Where topics begin, bytes from the window's start."""
        return self.positions + self.fields["topic_at"]

    @property
    def valid(self) -> Bools:
        """Which rows have a record's magic, and part lengths that add up to TOTALSIZE."""
        return self.fields["is_valid"] != 0

    @cached_property
    def topics(self) -> tuple[list[bytes], Int64s]:
        """The distinct topics, and for each row the index of its topic."""
        names, numbers = _kernel.topics(self.window, self.fields)
        return names, np.frombuffer(numbers, np.int64)

    @property
    def properties(self) -> PropertyColumns:
        """The properties texts, for searching."""
        return PropertyColumns(self.window, self.fields)

    def indexed(self) -> Indexed:
        """Return what dispatchers index of the records."""
        return self.properties.indexed()

    @property
    def end_offset(self) -> int:
        """The log offset after the last record; there must be one."""
        return int(self.log_offsets[-1]) + int(self.fields["size"][-1])

    @property
    def last_time_ms(self) -> int:
        """The store time of the last record; there must be one."""
        return int(self.fields["store_ms"][-1])

    def are_valid(self, coverage: Coverage = NO_COVERAGE, *, check_crc: bool = True) -> Bools:
        """Return which rows are valid records at their log offsets; see `validity`."""
        checks = _kernel.CRC if check_crc else 0
        offsets = np.ascontiguousarray(self.log_offsets)
        found = _kernel.valid_rows(self.window, self.fields, offsets, checks, coverage.packed)
        return np.frombuffer(found, np.bool_)

    def end_in_own_crc(self) -> Bools:
        """Return which records end in a CRC property that matches all bytes before it."""
        return np.frombuffer(_kernel.own_crcs(self.window, self.fields), np.bool_)

    def head(self, count: int) -> "RecordColumns":
        """Return the first `count` rows."""
        return self if count == len(self) else self.rows(slice(count))

    def rows(self, which: Int64s | Bools | slice) -> "RecordColumns":
        """Return the selected rows."""
        return RecordColumns(self.window, self.fields[which], self.log_offsets[which])


class ScannedColumns(RecordColumns):
    """Records that a scan found one after the other, each at the log offset that it states.

    Most batches of a follower have one record or a few, and numpy takes longer to make the columns of these than the
    kernel to do all the work. So a column is made when it is asked for, and `entry_parts` needs none.

    Attributes:
        packed: the rows, as the kernel returned them.
    """

    def __init__(self, window: Buffer, packed: bytes, end_offset: int) -> None:
        self.window = window
        self.packed = packed
        self._end_offset = end_offset
        self._fields: Rows | None = None
        self._keys: Keys | None = None
        self._topics: tuple[list[bytes], bytearray] | None = None
        self._indexed: tuple[bytearray, bytes, bytes] | None = None

    def __len__(self) -> int:
        return len(self.packed) // _kernel.ROW_BYTES

    @property
    def fields(self) -> Rows:  # type: ignore[override] # read-only here, and made late
        """The rows (`ROW`)."""
        if self._fields is None:
            self._fields = np.frombuffer(self.packed, ROW.dtype)
        return self._fields

    @property
    def log_offsets(self) -> Int64s:  # type: ignore[override] # as above
        """Byte addresses in the commit log."""
        found: Int64s = self.fields["log_offset"]
        return found

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def last_time_ms(self) -> int:
        return self.last("store_ms")

    def last(self, name: str) -> int:
        """Return one of the 8-byte fields of the last row."""
        at = len(self.packed) - _kernel.ROW_BYTES + _POSITIONS[name]
        found: int = _I64.unpack_from(self.packed, at)[0]
        return found

    @property
    def _packed_topics(self) -> tuple[list[bytes], bytearray]:
        if self._topics is None:
            self._topics = _kernel.topics(self.window, self.packed)
        return self._topics

    @property
    def _packed_indexed(self) -> tuple[bytearray, bytes, bytes]:
        if self._indexed is None:
            self._indexed = _kernel.indexed(self.window, self.packed)
        return self._indexed

    @property
    def topics(self) -> tuple[list[bytes], Int64s]:
        names, numbers = self._packed_topics
        return names, np.frombuffer(numbers, np.int64)

    @property
    def topic_names(self) -> list[bytes]:
        """The distinct topics."""
        return self._packed_topics[0]

    def indexed(self) -> Indexed:
        return Indexed(np.frombuffer(self._packed_indexed[0], np.int64), self.keys)

    @property
    def keys(self) -> Keys:
        """The keys of `indexed`."""
        if self._keys is None:
            _, rows, hashes = self._packed_indexed
            self._keys = hashed(rows, hashes) if rows else no_keys()
        return self._keys

    def entry_parts(self) -> tuple[bytes, bytearray, bytearray, int]:
        """Return what `_kernel.row_entries` takes: rows, the index of each row's topic, tag codes, number of topics."""
        names, numbers = self._packed_topics
        return self.packed, numbers, self._packed_indexed[0], len(names)


_I64 = struct.Struct("=q")
# Of the 8-byte fields, which are the first ones of a row.
_POSITIONS = {name: 8 * at for at, (name, kind) in enumerate(_kernel.ROW_FIELDS) if kind == "i8"}
