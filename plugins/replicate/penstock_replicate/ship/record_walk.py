"""Records by their headers: where each ends, and when it was stored. Nothing else of them is looked at, or checked.

Layout (big-endian): see `penstock.format.record`. A blank record takes the rest of its segment.
"""

import struct
from typing import NamedTuple

from penstock.format.record import (
    BLANK_SIZE,
    BORN_IPV6,
    FIXED_SIZE,
    IPV6_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)

_SIZE_AND_MAGIC = struct.Struct(">ii")
_SYS_FLAG_AT, _TIME_AT = 36, 56
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
# As many bytes of a record are needed.
HEADER_BYTES = _TIME_AT + IPV6_EXTRA + _I64.size
assert HEADER_BYTES <= FIXED_SIZE


class RecordHead(NamedTuple):
    """A record's size, and when it was stored; None for a blank record, which has no time."""

    size: int
    time_ms: int | None


def header_at(data: bytes | memoryview, position: int) -> RecordHead | None:
    """Return the header of the record that begins at a position; None if none does, or too few bytes are there."""
    if len(data) - position < BLANK_SIZE:
        return None
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        return RecordHead(size, None) if size >= BLANK_SIZE else None
    if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_SIZE:
        return None
    if len(data) - position < HEADER_BYTES:
        return None
    (sys_flag,) = _I32.unpack_from(data, position + _SYS_FLAG_AT)
    at = position + _TIME_AT + (IPV6_EXTRA if sys_flag & BORN_IPV6 else 0)
    return RecordHead(size, _I64.unpack_from(data, at)[0])


class RecordWalk:
    """Follows the records of bytes that come in order, up to the first one after a point. Not thread-safe.

    Args:
        start: the log offset of the first byte; a record begins there.
        last_ms: records stored later are after the point; None for no such limit.
        last_offset: records that end after this log offset are after the point; None for no such limit.

    Attributes:
        end: the log offset after the last record before the point.
        time_ms: when that record was stored; 0 if there was none.
        is_over: the first record after the point was found.
        reason: why the walk cannot go on; None while it can.
    """

    def __init__(self, start: int, *, last_ms: int | None, last_offset: int | None) -> None:
        self._last_ms, self._last_offset = last_ms, last_offset
        self._kept = b""
        # Log offset of the first byte of `_kept`, where a record begins unless `_skip` bytes of the one before are missing.
        self.end = start
        self._skip = 0
        self.time_ms = 0
        self.is_over = False
        self.reason: str | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        view, at = self._kept + data, 0
        while not self.is_over and self.reason is None and at < len(view):
            header = header_at(view, at)
            if header is None:
                if len(view) - at >= HEADER_BYTES:
                    self.reason = f"no record begins at log offset {self.end}"
                break
            if self._is_after(header):
                self.is_over = True
                return
            self.end += header.size
            self.time_ms = header.time_ms or self.time_ms
            at += header.size
        self._skip += max(at - len(view), 0)
        self._kept = view[at:]

    def _is_after(self, header: RecordHead) -> bool:
        if self._last_offset is not None and self.end + header.size > self._last_offset:
            return True
        is_later = self._last_ms is not None and header.time_ms is not None
        return is_later and (header.time_ms or 0) > (self._last_ms or 0)
