"""Finds the sound records behind damage: a record is known by its stored log offset, which is its own place.

So damage costs no record behind it. Bytes are hostile here: a place that only looks like a record's head costs
a read of that head, and the whole record is read only if it would lie within its segment and at its place, and
its lengths add up.
"""

import contextlib
from collections.abc import Iterator

from penstock.fetch import is_sound
from penstock.log import SegmentedLog
from penstock.record import BORN_IPV6, FIXED_SIZE, IPV6_EXTRA, MAGIC_V2, STORE_IPV6
from penstock.segment import Segment

_SEARCH_BYTES = 1 << 20
# Some overlap, so that a magic across two windows is seen.
_OVERLAP = 8
_NOTHING = bytes(_SEARCH_BYTES + _OVERLAP)
_MAGIC_HEAD = b"\xda\xa3\x20"
_MAGIC_V2 = (MAGIC_V2 & 0xFFFFFFFF).to_bytes(4, "big")
_OFFSET_AT = slice(28, 36)
# All before the body of a record with two IPv6 hosts.
_HEAD_BYTES = 88 + 2 * IPV6_EXTRA


def find_survivor(log: SegmentedLog, segment: Segment, after: int) -> int | None:
    """Return the first sound record of a segment behind log offset `after`, or None."""
    for at, window in used_windows(log, segment, after):
        survivor = survivor_in(log, segment, window, at, after)
        if survivor is not None:
            return survivor
    return None


def used_windows(log: SegmentedLog, segment: Segment, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (log offset, bytes) of what is not all zero in a segment from `start` on."""
    end = segment.end_offset
    # A file that was made whole beforehand is read no further than it was ever written; of one that is gone reading tells.
    with contextlib.suppress(FileNotFoundError):
        end = min(segment.base_offset + segment.data_end(), end)
    for at in range(start, end, _SEARCH_BYTES):
        size = min(_SEARCH_BYTES + _OVERLAP, segment.end_offset - at)
        window = bytes(log.read(at, size))
        if window != _NOTHING[:size]:
            yield at, window


def survivor_in(
    log: SegmentedLog, segment: Segment, window: bytes, base: int, after: int
) -> int | None:
    """Return the first sound record whose magic is in a window, and that begins behind `after`."""
    found = window.find(_MAGIC_HEAD)
    while found >= 0:
        offset = base + found - 4
        if offset > after and offset >= segment.base_offset and is_record_at(log, segment, offset):
            return offset
        found = window.find(_MAGIC_HEAD, found + 1)
    return None


def is_record_at(log: SegmentedLog, segment: Segment, offset: int) -> bool:
    """Say whether a whole sound record begins at `offset` of this segment."""
    left = segment.end_offset - offset
    if left < FIXED_SIZE:
        return False
    head = bytes(log.read(offset, min(left, _HEAD_BYTES)))
    size = int.from_bytes(head[:4], "big", signed=True)
    if not FIXED_SIZE <= size <= left or int.from_bytes(head[_OFFSET_AT], "big") != offset:
        return False
    return _adds_up(log, offset, size, head) and is_sound(log.read(offset, size), offset)


def _adds_up(log: SegmentedLog, offset: int, size: int, head: bytes) -> bool:
    """Say whether the lengths in a record make up its size, by reading no more than the lengths."""
    flags = int.from_bytes(head[36:40], "big")
    at = 84 + IPV6_EXTRA * (bool(flags & BORN_IPV6) + bool(flags & STORE_IPV6))
    at += 4 + int.from_bytes(head[at : at + 4], "big")
    # The body's length, then the topic's, then that of the properties; each must leave room for the next.
    width = 2 if head[4:8] == _MAGIC_V2 else 1
    for length_bytes in (width, 2):
        if at + length_bytes > size:
            return False
        at += length_bytes + int.from_bytes(log.read(offset + at, length_bytes), "big")
    return at == size
