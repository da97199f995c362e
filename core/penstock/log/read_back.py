"""What was appended is read back before anyone relies on it: a writer that loses bytes is found out by that.

A flush policy that makes appenders wait answers "on disk"; a follower says that records were taken in; a clean
close says that the log goes up to its end. None of them believes the writer alone.
"""

import numpy as np

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.format.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.log.scan import Checks, StopReason, scan_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog


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
        is_held = segment.lease.hold()
        try:
            bad = _first_bad(log, segment, at, limit)
        finally:
            if is_held:
                segment.lease.release()
        if bad is not None:
            return bad
        at = limit
    return None


def _first_bad(log: SegmentedLog, segment: Segment, start: int, stop: int) -> int | None:
    """Return where the valid records of a segment end, None if they reach `stop` or the segment's filler."""
    at, reason = start, StopReason.END
    checks = Checks(log.coverage)
    for _, at, reason in scan_segment(log, segment, start, stop, checks, is_copied=False):  # noqa: B007 - the last one counts
        pass
    is_end = reason is StopReason.END or (
        reason is StopReason.FILLER and is_filler(log, segment, at)
    )
    return None if is_end else at


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
