"""Many records at once, as columns: each record's numbers, and the positions of its parts.

A row holds the fields of a record as the kernel parses it (`Record` in `_kernel/record.h`): `RecordColumns.parse` for
records at known positions, `scan` for consecutive records. Bytes from disk may be hostile: a row that is not `valid`
holds only its position, size and magic, and nothing is read outside of the window.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from penstock import _kernel
from penstock.format.arrays import Bools, Bytes, Int64s, RowType, Structs, np
from penstock.format.record import TRANSACTION_MASK
from penstock.format.text_columns import PropertyColumns
from penstock.format.validity import NO_COVERAGE, Coverage

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
    crcs: Int64s = _numbers("crc", "BODYCRC as stored.")
    queues: Int64s = _numbers("queue", "QUEUEID.")
    flags: Int64s = _numbers("flag", "FLAG.")
    queue_offsets: Int64s = _numbers("queue_offset", "QUEUEOFFSET.")
    stored_offsets: Int64s = _numbers(
        "log_offset",
        "PHYSICALOFFSET as stored; differs from `log_offsets` if bytes are misplaced.",
    )
    sys_flags: Int64s = _numbers("sys_flag", "SYSFLAG.")
    born_times_ms: Int64s = _numbers("born_ms", "BORNTIMESTAMP.")
    store_times_ms: Int64s = _numbers("store_ms", "STORETIMESTAMP.")
    reconsume_times: Int64s = _numbers("reconsume", "RECONSUMETIMES.")
    prepared_offsets: Int64s = _numbers("prepared", "PREPAREDTRANSACTIONOFFSET.")
    body_sizes: Int64s = _numbers("body_size", "BODYLENGTH.")
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

    def are_valid(self, coverage: Coverage = NO_COVERAGE, *, check_crc: bool = True) -> Bools:
        """Return which rows are valid records at their log offsets; see `validity`."""
        checks = _kernel.CRC if check_crc else 0
        offsets = np.ascontiguousarray(self.log_offsets)
        found = _kernel.valid_rows(self.window, self.fields, offsets, checks, coverage.packed)
        return np.frombuffer(found, np.bool_)

    def first_bad(self, *, check_crc: bool, coverage: Coverage = NO_COVERAGE) -> int | None:
        """Return the first row that is not a valid record at its log offset, or None; see `validity`."""
        are_valid = self.are_valid(coverage, check_crc=check_crc)
        return None if are_valid.all() else int(np.argmin(are_valid))

    def end_in_own_crc(self) -> Bools:
        """Return which records end in a CRC property that matches all bytes before it."""
        return np.frombuffer(_kernel.own_crcs(self.window, self.fields), np.bool_)

    def head(self, count: int) -> "RecordColumns":
        """Return the first `count` rows."""
        return self if count == len(self) else self.rows(slice(count))

    def rows(self, which: Int64s | Bools | slice) -> "RecordColumns":
        """Return the selected rows."""
        return RecordColumns(self.window, self.fields[which], self.log_offsets[which])
