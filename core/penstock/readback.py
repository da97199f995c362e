"""What was appended is read back before anyone relies on it: a writer that loses bytes is found out by that.

A flush policy that makes appenders wait answers "on disk"; a follower says that records were taken in; a clean
close says that the log goes up to its end. None of them believes the writer alone.
"""

import numpy as np

from penstock.batch import DispatchBatch
from penstock.columns import Columns
from penstock.log import SegmentedLog
from penstock.record import BLANK_SIZE, FIXED_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.segment import Segment
from penstock.validity import is_valid
from penstock.walking import walk

_WINDOW_BYTES = 8 << 20
_SHORT_BYTES = 16 << 10


def first_unreadable(log: SegmentedLog, start: int, stop: int) -> int | None:
    """Return the log offset of the first bytes in [start, stop) that are no valid record, or None.

    Both begin a record, or end the log. Every check is made, the CRCs too.
    """
    at = start
    while at < stop:
        segment = log.find(at)
        if segment is None:
            return at
        limit = min(stop, segment.end_offset)
        size = min(_WINDOW_BYTES, limit - at)
        bad = _first_bad(log, segment, at, size)
        if bad == at and size < limit - at:
            # A record larger than a window, perhaps.
            size = limit - at
            bad = _first_bad(log, segment, at, size)
        if bad is None:
            at = segment.end_offset
        elif bad >= limit:
            at = limit
        elif bad == at or size == limit - at:
            return bad
        else:
            at = bad
    return None


def _first_bad(log: SegmentedLog, segment: Segment, at: int, size: int) -> int | None:
    """Return where the valid records end in `size` bytes of a segment; None where filler ends them."""
    window = log.read_from(segment, at, size)
    if size <= _SHORT_BYTES:
        return _first_bad_of_few(log, segment, at, bytes(window))
    found = walk(window)
    columns = Columns(window, found.positions, at)
    bad = columns.first_bad(check_crc=True, coverage=log.coverage)
    if bad is not None:
        return at + int(columns.positions[bad])
    if found.reason == "blank" and is_filler(log, segment, at + found.stop):
        return None
    return at + found.stop


def _first_bad_of_few(log: SegmentedLog, segment: Segment, at: int, window: bytes) -> int | None:
    """Return what `_first_bad` does; over a few records columns cost more than they save."""
    done = 0
    while done + SIZE_AND_MAGIC.size <= len(window):
        size, magic = SIZE_AND_MAGIC.unpack_from(window, done)
        if magic == MAGIC_BLANK and is_filler(log, segment, at + done):
            return None
        if not FIXED_SIZE <= size <= len(window) - done:
            break
        if not is_valid(
            window[done : done + size], at + done, is_covered=log.coverage.has(at + done)
        ):
            break
        done += size
    return at + done


def is_filler(log: SegmentedLog, segment: Segment, at: int) -> bool:
    """Say whether a blank record at `at` fills the segment to its end."""
    left = segment.end_offset - at
    if left < BLANK_SIZE:
        return False
    return SIZE_AND_MAGIC.unpack(log.read_from(segment, at, SIZE_AND_MAGIC.size)) == (
        left,
        MAGIC_BLANK,
    )


def unread_from(log: SegmentedLog, batch: DispatchBatch) -> int | None:
    """Return from where on a batch that was walked has bytes that are no record, or None: filler is none."""
    sizes = batch.sizes
    end = int(batch.log_offsets[-1] + sizes[-1]) if len(batch) else batch.start_offset
    if end == batch.end_offset:
        return None
    segment = log.find(end)
    return None if segment is not None and is_filler(log, segment, end) else end


def is_in_log(log: SegmentedLog, batch: DispatchBatch) -> bool:
    """Say whether the log has the bytes of a batch that was handed over."""
    given = batch.columns.raw
    there = log.read(batch.start_offset, len(given))
    return bool(np.array_equal(np.frombuffer(there, np.uint8), given))
