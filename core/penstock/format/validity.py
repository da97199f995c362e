"""When a record is valid. Opening, reading, `verify` and `repair` all use this definition.

A record is valid at a log offset if size, magic and the lengths of its parts agree, it states that log offset, and its
body has the stored CRC. If that log offset is covered, the record must also end in a CRC of the whole record.

The writer records in the side folder for which ranges of the log records end in such a CRC (`Coverage`). It
is never guessed from a record, because its last twenty bytes are text from a caller. Outside of covered ranges, a
matching CRC property proves that no byte of the record has changed. A CRC property that does not match proves nothing,
since brokers copy stale ones, and callers may write text that looks like one.

The kernel implements the rule (`is_valid_at` in `_kernel/record.h`), for one record or many. `check` is the same rule
in plain Python: it returns what is wrong with a record that the kernel has refused. Property tests compare both with
each other and with `record.decode_record`.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable

import attrs

from penstock import _kernel
from penstock.format.record import (
    BORN_IPV6,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    STORE_IPV6,
    MalformedRecordError,
    crc32,
    crc_property,
)

Buffer = bytes | memoryview

_HEAD = struct.Struct(">iiiii8xqi")
_I32 = struct.Struct(">i")


@attrs.frozen
class Coverage:
    """The ranges of the log in which every record ends in a CRC of the whole record.

    Attributes:
        ranges: first log offset, and the offset after the last one; ascending and disjoint.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    # The ranges in the form that the kernel takes.
    packed: bytes = attrs.field(init=False, repr=False, eq=False)

    @packed.default
    def _pack(self) -> bytes:
        return b"".join(struct.pack("=qq", *each) for each in self.ranges)

    def has(self, log_offset: int) -> bool:
        """Return whether a record that begins at `log_offset` must end in a CRC."""
        at = bisect_right(self.ranges, (log_offset, 1 << 63)) - 1
        return at >= 0 and log_offset < self.ranges[at][1]

    def has_all(self, start: int, stop: int) -> bool:
        """Return whether all of [start, stop) is covered."""
        for first, end in self.ranges:
            if first <= start < end:
                start = end
        return start >= stop

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> "Coverage":
        """Return the coverage of ranges in any order; empty ranges are dropped."""
        return cls(tuple(sorted(each for each in ranges if each[0] < each[1])))


NO_COVERAGE = Coverage()


def is_valid(record: Buffer, log_offset: int, *, is_covered: bool = False) -> bool:
    """Return whether these bytes are exactly one valid record of that log offset."""
    return _kernel.is_valid(record, log_offset, is_covered)


def check(record: Buffer, log_offset: int, *, is_covered: bool) -> slice:
    """Return where the body is in a valid record of that log offset.

    Args:
        record: exactly the bytes of the record.
        log_offset: their offset in the log.
        is_covered: whether that log offset is covered; see `Coverage`.

    Raises:
        MalformedRecordError: the record is not valid; it names what was expected and what was found.
    """
    total = len(record)
    if total < FIXED_SIZE:
        raise MalformedRecordError(f"at least {FIXED_SIZE} bytes", f"{total}")
    size, magic, crc, _queue, _flag, stored, sys_flag = _HEAD.unpack_from(record)
    if magic != MAGIC_V1 and magic != MAGIC_V2:  # noqa: PLR1714 - hot
        raise MalformedRecordError("magic daa320a7 or daa320ab", f"{magic & 0xFFFFFFFF:08x}")
    if size != total:
        raise MalformedRecordError(f"a record of {total} bytes", f"size {size}")
    if stored != log_offset:
        raise MalformedRecordError(f"stored log offset {log_offset}", f"{stored}")
    body = _check_parts(record, sys_flag, is_v2=magic == MAGIC_V2, needs_crc=is_covered)
    found = crc32(record[body]) & CRC_MASK
    if found != crc:
        raise MalformedRecordError(f"body CRC {found:08x}", f"{crc & 0xFFFFFFFF:08x}")
    if is_covered and not ends_in_own_crc(record):
        raise MalformedRecordError("a CRC of the whole record at its end", "no matching CRC")
    return body


def _check_parts(record: Buffer, sys_flag: int, *, is_v2: bool, needs_crc: bool) -> slice:
    """Return where the body is; raise unless the lengths of all parts add up to the record's size."""
    total, at = len(record), 84
    if sys_flag & (BORN_IPV6 | STORE_IPV6):
        at += (12 if sys_flag & BORN_IPV6 else 0) + (12 if sys_flag & STORE_IPV6 else 0)
    if at + 4 > total:
        raise MalformedRecordError(f"a head within {total} bytes", f"{at + 4} bytes")
    body_size = _I32.unpack_from(record, at)[0]
    start = at + 4
    end = start + body_size
    if body_size < 0 or end >= total:
        raise MalformedRecordError(f"a body within {total} bytes", f"{body_size} bytes at {start}")
    width = 2 if is_v2 else 1
    topic_size = int.from_bytes(record[end : end + width], "big", signed=True)
    at = end + width + topic_size
    if topic_size < 0 or at + 2 > total:
        raise MalformedRecordError(f"a topic within {total} bytes", f"{topic_size} bytes at {end}")
    text_size = int.from_bytes(record[at : at + 2], "big", signed=True)
    if text_size < 0 or at + 2 + text_size != total:
        raise MalformedRecordError(f"parts of {total} bytes in total", f"{at + 2 + text_size}")
    if needs_crc and text_size < CRC_PROPERTY_SIZE:
        raise MalformedRecordError("a CRC of the whole record at its end", "no room for a CRC")
    return slice(start, end)


def ends_in_own_crc(record: Buffer) -> bool:
    """Return whether the last twenty bytes of a record are a CRC property that matches all bytes before them.

    The record's properties text must have room for it; otherwise the twenty bytes may belong to body or topic.
    """
    covered = record[:-CRC_PROPERTY_SIZE]
    return bytes(record[-CRC_PROPERTY_SIZE:]) == crc_property(crc32(covered) & CRC_MASK)
