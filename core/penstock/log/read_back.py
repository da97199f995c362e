"""Reads appended records back before they are reported as stored, to detect a segment writer that loses bytes.

This is done before a put is reported as "on disk", before a follower reports records as dispatched, and before a clean
close records the log's end.
"""

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.format.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.log.scan import Checks, StopReason, scan_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog


def first_unreadable(log: SegmentedLog, start: int, stop: int) -> int | None:
    """Return the log offset of the first bytes in [start, stop) that are not a valid record, or None.

    A record must begin, or the log must end, at either offset. All checks are made, including the CRCs.
    """
    at = start
    while at < stop:
        segment = log.find(at)
        if segment is None:
            return at
        limit = min(stop, segment.end_offset)
        is_held = segment.lease.hold()
        try:
            bad = _find_bad(log, segment, at, limit)
        finally:
            if is_held:
                segment.lease.release()
        if bad is not None:
            return bad
        at = limit
    return None


def _find_bad(log: SegmentedLog, segment: Segment, start: int, stop: int) -> int | None:
    """Return where the valid records of a segment end; None if they reach `stop` or the segment's filler."""
    at, reason = start, StopReason.END
    checks = Checks(log.coverage)
    for _, at, reason in scan_segment(log, segment, start, stop, checks, is_copied=False):  # noqa: B007 - the last one counts
        pass
    is_end = reason is StopReason.END or (
        reason is StopReason.FILLER and is_filler(log, segment, at)
    )
    return None if is_end else at


def is_filler(log: SegmentedLog, segment: Segment, at: int) -> bool:
    """Return whether a blank record at `at` fills the segment to its end."""
    left = segment.end_offset - at
    if left < BLANK_SIZE:
        return False
    return SIZE_AND_MAGIC.unpack(log.read_from(segment, at, SIZE_AND_MAGIC.size)) == (
        left,
        MAGIC_BLANK,
    )


def unread_from(log: SegmentedLog, batch: DispatchBatch) -> int | None:
    """Return where the bytes of a scanned batch stop being records, or None; filler does not count."""
    end = batch.columns.end_offset if len(batch) else batch.start_offset
    if end == batch.end_offset:
        return None
    segment = log.find(end)
    return None if segment is not None and is_filler(log, segment, end) else end
