"""The walk along a log: where its records begin, by their sizes alone.

A plain loop over TOTALSIZE: that is a chain, so it cannot be vectorised. Bytes from disk are hostile here:
nothing is read outside the window, and what is no record's head ends the walk.
"""

import struct
from typing import NamedTuple

import numpy as np

from penstock.columns import Buffer
from penstock.javatext import Int64s
from penstock.joining import overlapping
from penstock.record import FIXED_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC

_SIZE = struct.Struct(">i")
# A walk takes so many steps before it looks at magics: where none is right it should not go far.
_WALKED = 1024


class Walk(NamedTuple):
    """Where a walk along the size chain came to.

    `positions` and `stop` are bytes from the window's start. `reason` is "end" (the window has no
    further whole record), "blank" (the rest of the segment is filler) or "bad" (no record at `stop`).
    `first_size` is how large the first record is that does not fit into the window, 0 where one fits or none begins.
    """

    positions: Int64s
    stop: int
    reason: str
    first_size: int = 0


def walk(window: Buffer) -> Walk:
    """Follow the size chain from the window's start; only size and magic of each record are looked at.

    A record that does not end within the window stops the walk with "end".
    """
    raw = np.frombuffer(window, np.uint8)
    parts, stop, is_whole = list[Int64s](), 0, True
    while is_whole:
        chain, following = _chain(window, stop)
        positions = np.array(chain, np.int64)
        # Some magics together: one by one they would cost a third of the walk.
        magics = overlapping(raw, SIZE_AND_MAGIC.size)[positions].view(">i4")[1::2]
        wrong = np.flatnonzero((magics != MAGIC_V1) & (magics != MAGIC_V2))
        is_whole = len(wrong) == 0 and len(chain) == _WALKED
        stop = chain[wrong[0]] if len(wrong) else following
        parts.append(positions[: wrong[0]] if len(wrong) else positions)
    reason = _why_ended(window, stop)
    is_larger = stop == 0 and reason == "end" and len(window) >= SIZE_AND_MAGIC.size
    first_size = _SIZE.unpack_from(window)[0] if is_larger else 0
    return Walk(np.concatenate(parts), stop, reason, first_size)


def _why_ended(window: Buffer, stop: int) -> str:
    if stop + SIZE_AND_MAGIC.size > len(window):
        return "end"
    size, magic = SIZE_AND_MAGIC.unpack_from(window, stop)
    if magic == MAGIC_BLANK:
        return "blank"
    return "end" if magic in (MAGIC_V1, MAGIC_V2) and size >= FIXED_SIZE else "bad"


def _chain(window: Buffer, at: int) -> tuple[list[int], int]:
    """Return where the sizes lead to from `at` on, some at once, and where that ends.

    As long as each can be a record's, and ends in the window.
    """
    unpack, least = _SIZE.unpack_from, FIXED_SIZE
    positions: list[int] = []
    append = positions.append
    last = len(window) - SIZE_AND_MAGIC.size
    for _ in range(_WALKED):
        if at > last:
            break
        (size,) = unpack(window, at)
        if size < least:
            break
        append(at)
        at += size
    return (positions, at) if at <= len(window) else (positions, positions.pop())
