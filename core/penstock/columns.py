"""Many records at once, as numpy columns: header fields, tags and keys.

Each is one gather a field over the positions that the walk found (see `walking`). A gather from bytes of any
alignment is a
fancy index into an array of stride 1 that overlaps itself. (Never `ndarray.take` such an array: it
copies the whole of it first.)

Bytes from disk are hostile here: `Columns.valid` marks the rows whose lengths add up, and nothing is
read at a position that was not checked against the window.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.crcs import crc_each
from penstock.javatext import Bytes, Int64s
from penstock.joining import overlapping
from penstock.lazy import lazy
from penstock.record import (
    BORN_IPV6,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    STORE_IPV6,
    TRANSACTION_MASK,
    crc_property,
)
from penstock.texts import PropertyColumns, distinct
from penstock.validity import NO_COVERAGE, Coverage

Bools = npt.NDArray[np.bool_]
Buffer = bytes | memoryview

# Everything before the body of a record with two IPv4 hosts.
_HEAD = np.dtype([
    ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue", ">i4"), ("flag", ">i4"),
    ("queue_offset", ">i8"), ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"),
    ("born_host", "V8"), ("stored", ">i8"), ("store_host", "V8"), ("reconsume", ">i4"),
    ("prepared", ">i8"), ("body", ">i4"),
])  # fmt: skip
# The CRC property: its name and 0x01, ten digits of which the least significant comes first, 0x02.
_DIGITS = slice(9, 19)
_CRC_START = np.frombuffer(crc_property(0)[: _DIGITS.start], np.uint8)
_CRC_END = 0x02
_POWERS = 10 ** np.arange(10, dtype=np.int64)


class Columns:
    """Header columns of the records at `positions` in `window`; one row a record.

    `base` is the log offset of the window's first byte; where the window has gaps, `log_offsets` says
    where each record lies instead. Every column has one value a row; rows that
    are not `valid` hold zeros where nothing could be read. Not thread-safe while columns are first used.
    """

    def __init__(
        self,
        window: Buffer,
        positions: Sequence[int] | Int64s,
        base: int,
        *,
        log_offsets: Int64s | None = None,
    ) -> None:
        self.window = window
        self.base = base
        self.raw: Bytes = np.frombuffer(window, np.uint8)
        self.positions: Int64s = np.asarray(positions, np.int64)
        if log_offsets is not None:
            self.log_offsets = log_offsets

    def __len__(self) -> int:
        return len(self.positions)

    def _view(self, dtype: str) -> Any:
        width = np.dtype(dtype).itemsize
        count = max(len(self.raw) - width + 1, 0)
        return np.ndarray((count,), dtype, self.raw, 0, (1,))

    def _i32(self, at: Int64s) -> Int64s:
        return self._view(">i4")[at].astype(np.int64)

    def _i64(self, at: Int64s) -> Int64s:
        return self._view(">i8")[at].astype(np.int64)

    @lazy
    def _heads(self) -> Any:
        """The fixed part of each record, in one gather: fields behind the hosts are right for IPv4 only."""
        if len(self.raw) < _HEAD.itemsize:
            return np.zeros(len(self), _HEAD)
        at = np.minimum(self.positions, len(self.raw) - _HEAD.itemsize)
        return overlapping(self.raw, _HEAD.itemsize)[at].view(_HEAD)

    def _head(self, name: str) -> Int64s:
        """Return a field of the fixed part."""
        field: Int64s = self._heads[name].astype(np.int64)
        return field

    @lazy
    def _is_short(self) -> bool:
        """Whether all hosts are IPv4 addresses, so that every field has its place in the fixed part."""
        return not (self.sys_flags & (BORN_IPV6 | STORE_IPV6)).any()

    def _safe(self, at: Int64s, width: int) -> Int64s:
        """Positions clipped into the window: what was clipped is in a row that is not valid."""
        # What np.clip does, in a third of the time where rows are few.
        return np.minimum(np.maximum(at, 0), max(len(self.raw) - width, 0))

    @lazy
    def log_offsets(self) -> Int64s:
        """Byte addresses in the commit log."""
        return self.positions + self.base

    @lazy
    def sizes(self) -> Int64s:
        """TOTALSIZE."""
        return self._head("size")

    @lazy
    def is_v2(self) -> Bools:
        """Whether the topic's length takes two bytes."""
        return self._magics == MAGIC_V2

    @lazy
    def _magics(self) -> Int64s:
        return self._head("magic")

    @lazy
    def crcs(self) -> Int64s:
        """BODYCRC as stored."""
        return self._head("crc")

    @lazy
    def queues(self) -> Int64s:
        """QUEUEID."""
        return self._head("queue")

    @lazy
    def flags(self) -> Int64s:
        """FLAG."""
        return self._head("flag")

    @lazy
    def queue_offsets(self) -> Int64s:
        """QUEUEOFFSET."""
        return self._head("queue_offset")

    @lazy
    def stored_offsets(self) -> Int64s:
        """PHYSICALOFFSET as stored; differs from `log_offsets` where bytes are stale or misplaced."""
        return self._head("log_offset")

    @lazy
    def sys_flags(self) -> Int64s:
        """SYSFLAG."""
        return self._head("sys_flag")

    @lazy
    def transaction_types(self) -> Int64s:
        """The transaction bits of SYSFLAG: 0, PREPARED, COMMIT or ROLLBACK."""
        return self.sys_flags & TRANSACTION_MASK

    @lazy
    def born_times_ms(self) -> Int64s:
        """BORNTIMESTAMP."""
        return self._head("born")

    @lazy
    def born_host_sizes(self) -> Int64s:
        """8 for IPv4, 20 for IPv6."""
        return np.where(self.sys_flags & BORN_IPV6, 20, 8)

    @lazy
    def store_host_sizes(self) -> Int64s:
        """8 for IPv4, 20 for IPv6."""
        return np.where(self.sys_flags & STORE_IPV6, 20, 8)

    @lazy
    def store_time_positions(self) -> Int64s:
        """Where STORETIMESTAMP stands."""
        return self.positions + 48 + self.born_host_sizes

    @lazy
    def store_times_ms(self) -> Int64s:
        """STORETIMESTAMP."""
        if self._is_short:
            return self._head("stored")
        return self._i64(self._safe(self.store_time_positions, 8))

    @lazy
    def _after_hosts(self) -> Int64s:
        return self.store_time_positions + 8 + self.store_host_sizes

    @lazy
    def reconsume_times(self) -> Int64s:
        """RECONSUMETIMES."""
        if self._is_short:
            return self._head("reconsume")
        return self._i32(self._safe(self._after_hosts, 4))

    @lazy
    def prepared_offsets(self) -> Int64s:
        """PREPAREDTRANSACTIONOFFSET."""
        if self._is_short:
            return self._head("prepared")
        return self._i64(self._safe(self._after_hosts + 4, 8))

    @lazy
    def body_starts(self) -> Int64s:
        """Where bodies begin, bytes from the window's start."""
        return self.positions + 88 if self._is_short else self._after_hosts + 16

    @lazy
    def body_sizes(self) -> Int64s:
        """BODYLENGTH as stored; not to be used where a row is not valid."""
        if self._is_short:
            return self._head("body")
        return self._i32(self._safe(self._after_hosts + 12, 4))

    @lazy
    def _parts(self) -> tuple[Int64s, Int64s, Int64s, Int64s, Bools]:
        """Topic start and size, properties start and size, and which rows add up."""
        ends = self.positions + self.sizes
        valid = (ends <= len(self.raw)) & (self.sizes >= FIXED_SIZE)
        valid &= self.is_v2 | (self._magics == MAGIC_V1)
        body_ends = self.body_starts + self.body_sizes
        valid &= (self.body_sizes >= 0) & (body_ends < ends)
        at = self._safe(body_ends, 2)
        topic_sizes: Int64s = self.raw[at].astype(np.int8).astype(np.int64)
        topic_starts = body_ends + 1
        if self.is_v2.any():
            topic_sizes = np.where(self.is_v2, self._view(">i2")[at], topic_sizes)
            topic_starts += self.is_v2
        topic_ends = topic_starts + topic_sizes
        valid &= (topic_sizes >= 0) & (topic_ends + 2 <= ends)
        property_sizes = self._view(">i2")[self._safe(topic_ends, 2)].astype(np.int64)
        property_starts = topic_ends + 2
        valid &= (property_sizes >= 0) & (property_starts + property_sizes == ends)
        parts = (topic_starts, topic_sizes, property_starts, property_sizes)
        if not valid.all():
            for part in parts:
                part[~valid] = 0
        return *parts, valid

    @property
    def topic_starts(self) -> Int64s:
        """Where topics begin, bytes from the window's start."""
        return self._parts[0]

    @property
    def topic_sizes(self) -> Int64s:
        """Topic lengths in bytes."""
        return self._parts[1]

    @property
    def property_starts(self) -> Int64s:
        """Where properties texts begin, bytes from the window's start."""
        return self._parts[2]

    @property
    def property_sizes(self) -> Int64s:
        """Properties text lengths in bytes."""
        return self._parts[3]

    @property
    def valid(self) -> Bools:
        """Rows with a record's magic, and part lengths that add up to TOTALSIZE."""
        return self._parts[4]

    def crc_is_right(self, coverage: Coverage = NO_COVERAGE) -> Bools:
        """Check the CRC of each body, and where the log is covered that of each record. Only for valid rows."""
        made = crc_each(self.raw, self.body_starts, self.body_sizes)
        right: Bools = (made & CRC_MASK) == self.crcs
        if coverage.ranges:
            covered = coverage.rows(self.log_offsets)
            if covered.all():
                right &= self.end_in_own_crc()
            elif covered.any():
                right[covered] &= self.rows(covered).end_in_own_crc()
        return right

    def end_in_own_crc(self) -> Bools:
        """Return which rows end in the CRC property of all bytes before it."""
        has_room: Bools = self.property_sizes >= CRC_PROPERTY_SIZE
        ends = self._safe(self.positions + self.sizes - CRC_PROPERTY_SIZE, CRC_PROPERTY_SIZE)
        tails = overlapping(self.raw, CRC_PROPERTY_SIZE)[ends].view(np.uint8)
        tails = tails.reshape(-1, CRC_PROPERTY_SIZE)
        digits = tails[:, _DIGITS].astype(np.int64) - ord("0")
        is_property = (tails[:, : _DIGITS.start] == _CRC_START).all(1) & (tails[:, -1] == _CRC_END)
        is_property &= ((digits >= 0) & (digits <= 9)).all(1)  # noqa: PLR2004 - a digit
        made = crc_each(self.raw, self.positions, np.where(has_room, ends - self.positions, 0))
        right: Bools = has_room & is_property & ((made & CRC_MASK) == digits @ _POWERS)
        return right

    def first_bad(self, *, check_crc: bool, coverage: Coverage = NO_COVERAGE) -> int | None:
        """Return the first row that is not a valid record at its place, or None; see `validity`."""
        good = self.valid & (self.stored_offsets == self.log_offsets)
        bad = np.nonzero(~good)[0]
        stop = int(bad[0]) if len(bad) else len(self)
        if check_crc and stop:
            right = self.head(stop).crc_is_right(coverage)
            if not right.all():
                return int(np.argmin(right))
        return stop if stop < len(self) else None

    def first_torn(self, sector_bytes: int, start: int) -> int | None:
        """Return the first row whose topic or properties look like a sector never written, or None.

        Of records from log offset `start` on, that Penstock wrote: their topics and texts end in no zero, and texts hold no sector of
        zeros. A record that ends in a CRC of its own bytes is whole whatever they are.
        """
        topic_ends = self.topic_starts + self.topic_sizes
        ends = self.property_starts + self.property_sizes
        is_torn = (self.raw[np.maximum(topic_ends - 1, 0)] == 0) & (self.topic_sizes > 0)
        is_torn |= (self.raw[np.maximum(ends - 1, 0)] == 0) & (self.property_sizes > 0)
        zeros = bytes(sector_bytes)
        for row in np.flatnonzero(self.property_sizes > sector_bytes).tolist():
            start, stop = int(self.property_starts[row]), int(ends[row])
            first = start + -(start + self.base) % sector_bytes
            is_torn[row] |= any(
                bytes(self.raw[at : at + sector_bytes]) == zeros
                for at in range(first, stop - sector_bytes + 1, sector_bytes)
            )
        found = np.flatnonzero(is_torn & (self.log_offsets >= start))
        if len(found):
            found = found[~self.rows(found).end_in_own_crc()]
        return int(found[0]) if len(found) else None

    def head(self, count: int) -> "Columns":
        """Return the first `count` rows."""
        return self if count == len(self) else self.rows(np.arange(count))

    def rows(self, which: Int64s | Bools) -> "Columns":
        """Return some of the rows."""
        some = Columns(
            self.window, self.positions[which], self.base, log_offsets=self.log_offsets[which]
        )
        if "topics" in self.__dict__:
            vars(some)["topics"] = (self.topics[0], self.topics[1][which])
        return some

    @lazy
    def topics(self) -> tuple[list[bytes], Int64s]:
        """The distinct topics, and for each row the index of its own."""
        return distinct(self.raw, self.topic_starts, self.topic_sizes)

    @lazy
    def properties(self) -> "PropertyColumns":
        """The properties texts, taken apart."""
        return PropertyColumns.of_pieces(self.raw, self.property_starts, self.property_sizes)
