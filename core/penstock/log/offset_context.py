"""Determines what is at a log offset where no record can be read: the inside of a record, filler, or nothing yet.

A wrong offset from a caller must not be reported as corruption. The segment is scanned from its start with all
checks, which costs as much as reading the segment; this happens only after a read has failed.
"""

from penstock.errors import NoRecordError, OffsetError
from penstock.format.columns import RecordColumns
from penstock.format.record import SIZE_AND_MAGIC
from penstock.log.salvage import End, Valid, walk_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog


def explain(log: SegmentedLog, log_offset: int) -> OffsetError | None:
    """Return why no record begins at `log_offset`; None if the log is corrupt there, or a record can be read after all."""
    segment = log.find(log_offset)
    if segment is None or log_offset < log.min_offset or not segment.lease.hold():
        return None
    try:
        return _explain_in(log, segment, log_offset)
    finally:
        segment.lease.release()


def _explain_in(log: SegmentedLog, segment: Segment, log_offset: int) -> OffsetError | None:
    """Return why no record begins at an offset of a segment; see `explain`."""
    before: int | None = None
    for piece in walk_segment(log, segment):
        if isinstance(piece, End):
            if piece.start > log_offset:
                return None
            return _explain_after_records(log, segment, piece, log_offset, before)
        if isinstance(piece, Valid):
            if piece.start <= log_offset < piece.stop:
                return _explain_inside(piece.columns, piece.stop, log_offset)
            if len(piece.columns):
                before = int(piece.columns.log_offsets[-1])
        elif log_offset < piece.stop:
            return None
    return None


def _explain_inside(records: RecordColumns, stop: int, log_offset: int) -> OffsetError | None:
    """Return the error for an offset within a range that valid records fill."""
    offsets = records.log_offsets.tolist()
    row = int((records.log_offsets <= log_offset).sum()) - 1
    if row < 0 or offsets[row] == log_offset:
        # The record can be read after all: it was written, or repaired, meanwhile.
        return None
    after = offsets[row + 1] if row + 1 < len(offsets) else stop
    return NoRecordError(log_offset, offsets[row], after, "the offset is inside a record")


def _explain_after_records(
    log: SegmentedLog, segment: Segment, piece: End, log_offset: int, before: int | None
) -> OffsetError | None:
    """Return the error for an offset at or after the end of a segment's records."""
    if piece.is_blank:
        why = "the rest of that segment is filler"
        return NoRecordError(log_offset, before, log.next_base(log_offset), why)
    room = min(SIZE_AND_MAGIC.size, segment.end_offset - piece.start)
    if bytes(log.read(piece.start, room)).strip(b"\0") or log.next_base(log_offset) is not None:
        # Bytes that are not a record, or a hole before later segments: corruption.
        return None
    return OffsetError(log_offset, log.min_offset, piece.start)
