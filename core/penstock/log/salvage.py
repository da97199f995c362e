"""A scan of a segment that continues after corruption: ranges of valid records, and the corrupt ranges between them.

All checks are made for every record (see `validity`). A record that its queue's offsets show to be corrupt
(`SegmentedLog.rejected`, see `queue_continuity`) is not valid either. After a corrupt record the scan searches for the
next valid record that has a witness (see `resync`). A record never crosses a segment, so each segment can be scanned
by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.format.arrays import np
from penstock.format.columns import RecordColumns
from penstock.log.queue_continuity import Due, Note, QueueGenerations
from penstock.log.resync import Resync
from penstock.log.scan import Checks, StopReason, scan_segment
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog


class Valid(NamedTuple):
    """Valid records in [start, stop); their memory is valid only until the next part is requested."""

    columns: RecordColumns
    start: int
    stop: int


class Corrupt(NamedTuple):
    """A range [start, stop) in which no valid record begins; at `stop` one begins, or the segment's records end.

    `reason` is empty if the bytes themselves are not valid records. `is_noted`: the range is quarantined.
    """

    start: int
    stop: int
    reason: str = ""
    is_noted: bool = False


class End(NamedTuple):
    """The records of a segment end at `start`, with a blank record or without one."""

    start: int
    is_blank: bool


Piece = Valid | Corrupt | End


def walk_segment(log: SegmentedLog, segment: Segment) -> Iterator[Piece]:
    """Yield the parts of a segment in log order; the last one is an `End`.

    A torn tail (`SegmentedLog.torn_at`) is not scanned.
    """
    at, resync = segment.base_offset, Resync(log, segment)
    limit = segment.end_offset if log.torn_at is None else min(segment.end_offset, log.torn_at)
    while at < limit:
        reason = StopReason.END
        for records, end, reason in scan_segment(log, segment, at, limit, Checks(log.coverage)):
            if reason is StopReason.QUARANTINED:
                yield Corrupt(at, end, is_noted=True)
            else:
                yield from _without_rejected(log, records, at, end)
            at = end
        is_blank = reason in (StopReason.FILLER, StopReason.QUARANTINED)
        following = None if is_blank else resync.next_valid(at)
        if following is None or following >= limit:
            yield End(at, is_blank)
            return
        yield Corrupt(at, following)
        at = following
    yield End(max(limit, segment.base_offset), is_blank=limit == segment.end_offset)


def _without_rejected(
    log: SegmentedLog, columns: RecordColumns, start: int, stop: int
) -> Iterator[Valid | Corrupt]:
    """Yield valid records, and as corrupt ranges those records that were rejected by their queues' offsets."""
    offsets = columns.log_offsets
    rejected = [r for r in sorted(log.rejected) if start <= r < stop] if log.rejected else []
    rows = np.searchsorted(offsets, np.array(rejected, np.int64))
    first = 0
    for offset, row in zip(rejected, rows.tolist(), strict=True):
        if row >= len(offsets) or int(offsets[row]) != offset:
            continue
        size, reason = log.rejected[offset]
        yield Valid(columns.rows(slice(first, row)), start, offset)
        yield Corrupt(offset, offset + size, reason)
        first, start = row + 1, offset + size
    yield Valid(columns.rows(slice(first, None)), start, stop)


def needs_counts(log: SegmentedLog) -> bool:
    """Return whether `reject_by_counts` scans the log: not if all records end in a CRC of their own bytes."""
    spans = log.spans()
    return bool(spans) and not log.coverage.has_all(spans[0][0], spans[-1][1])


def reject_by_counts(
    log: SegmentedLog,
    is_own: Callable[[int], bool],
    gaps: Sequence[tuple[int, int]],
    on_scanned: Callable[[int], None] = lambda _: None,
) -> list[Note]:
    """Set `log.rejected` to the records that their queues' offsets show to be corrupt; return notes on new generations.

    Nothing is scanned unless `needs_counts`. `on_scanned` is called during the scan, with the log offset it has reached.
    """
    log.rejected = {}
    if not needs_counts(log):
        return []
    free = log.min_offset > 0
    generations = QueueGenerations(log, lambda _queue: None if free else Due(0), is_own, gaps)
    expected = log.min_offset
    for segment in log.segments:
        if segment.base_offset > expected:
            generations.lose(expected, segment.base_offset)
        for piece in walk_segment(log, segment):
            if isinstance(piece, Valid):
                generations.add(piece.columns)
            elif isinstance(piece, Corrupt):
                generations.lose(piece.start, piece.stop)
            elif not piece.is_blank:
                generations.lose(piece.start, segment.end_offset)
            on_scanned(piece.start)
        expected = segment.end_offset
    found = generations.finish()
    log.rejected = found.rejected
    return found.notes
