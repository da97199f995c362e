"""The walk over a segment that goes on behind damage: sound stretches, and what lies between them.

Every record is checked by all there is: lengths, place, CRC, and the CRC property where it has one. From
a bad record the walk looks for the next sound one, which is known by its stored log offset. A record
never crosses a segment, so each segment can be walked by itself.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.columns import Columns
from penstock.log import SegmentedLog
from penstock.segment import Segment
from penstock.survivors import find_survivor
from penstock.walking import walk

_WINDOW_BYTES = 8 << 20


class Sound(NamedTuple):
    """Sound records in [start, stop); the memory is lent."""

    columns: Columns
    start: int
    stop: int


class Broken(NamedTuple):
    """No sound record begins in [start, stop), and one begins at `stop`."""

    start: int
    stop: int


class Stop(NamedTuple):
    """The records of a segment end at `start`, with a blank record or without one."""

    start: int
    is_blank: bool


Piece = Sound | Broken | Stop


def walk_segment(log: SegmentedLog, segment: Segment) -> Iterator[Piece]:
    """Return the pieces of a segment in log order; the last one is a `Stop`."""
    at = segment.base_offset
    window_bytes = _WINDOW_BYTES
    while at < segment.end_offset:
        window = log.read(at, min(window_bytes, segment.end_offset - at))
        found = walk(window)
        columns = Columns(window, found.positions, at)
        bad = columns.first_bad(check_crc=True)
        good = columns if bad is None else columns.head(bad)
        stop = at + (found.stop if bad is None else int(columns.positions[bad]))
        yield Sound(good, at, stop)
        if bad is None and found.reason == "end" and len(window) < segment.end_offset - at:
            # The window ended within a record, or right behind one.
            window_bytes = segment.capacity if stop == at else _WINDOW_BYTES
            at = stop
            continue
        following = None
        is_blank = bad is None and found.reason == "blank"
        if not is_blank:
            following = find_survivor(log, segment, stop)
        if following is None:
            yield Stop(stop, is_blank)
            return
        yield Broken(stop, following)
        at = following
    yield Stop(segment.end_offset, is_blank=True)
