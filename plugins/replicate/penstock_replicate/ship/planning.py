"""Which ranges of a log become objects next.

A segment that is full becomes one object, which replaces its pieces. Of the last one, each round ships what is new as one piece. So that
a manifest does not grow with each round, as many pieces of the same weight at the end as `FAN` become one together with what is new:
each byte is shipped a few times until its segment is full.
"""

from collections.abc import Sequence

import attrs

from penstock_replicate.ship.manifest import LogPiece

# A segment of 10,000 rounds has at most 60 pieces, and its bytes are shipped 4 times, and once as a whole.
FAN = 16
WHOLE = 0


@attrs.frozen
class Upload:
    """A range to ship as one object, with the weight that its piece will have."""

    start: int
    stop: int
    weight: int


def plan(pieces: Sequence[LogPiece], min_offset: int, end: int, segment_bytes: int) -> list[Upload]:
    """Return what to ship of a log that begins at `min_offset` and ends at `end`, besides `pieces`; oldest first."""
    uploads = []
    at = max(pieces[-1].stop, min_offset) if pieces else min_offset
    while at < end:
        base = at - at % segment_bytes
        stop = min(base + segment_bytes, end)
        open_pieces = _adjacent(pieces, max(base, min_offset), at)
        if stop == base + segment_bytes:
            start = open_pieces[0].start if open_pieces else at
            uploads.append(Upload(start, stop, WHOLE))
        else:
            uploads.append(_merged(open_pieces, at, stop))
        at = stop
    return uploads


def with_uploaded(pieces: Sequence[LogPiece], made: Sequence[LogPiece]) -> tuple[LogPiece, ...]:
    """Return the pieces with new ones at the end, in place of those whose ranges they include."""
    if not made:
        return tuple(pieces)
    return (*(piece for piece in pieces if piece.start < made[0].start), *made)


def _adjacent(pieces: Sequence[LogPiece], least: int, stop: int) -> list[LogPiece]:
    """Return the pieces from log offset `least` on that end at `stop`, one beginning where the other ends."""
    found: list[LogPiece] = []
    for piece in reversed(pieces):
        if piece.stop != stop or piece.start < least:
            break
        found.append(piece)
        stop = piece.start
    return found[::-1]


def _merged(open_pieces: list[LogPiece], at: int, stop: int) -> Upload:
    weight, start, left = 1, at, len(open_pieces)
    while left >= FAN - 1:
        last = open_pieces[left - FAN + 1 : left]
        if any(piece.weight != weight for piece in last):
            break
        start, weight, left = last[0].start, weight * FAN, left - FAN + 1
    return Upload(start, stop, weight)
