"""The marks of atomic batches: records that are in the log all together, or not at all, also after a crash.

All records of an atomic batch are in one segment, one after the other, and have the same store time. Each carries a mark in
PREPAREDTRANSACTIONOFFSET, a field that brokers do not read in a plain message. With the marks, recovery finds a batch whose
end is missing, and cuts the log where the batch begins; no second sync is needed. A mark is a negative i64 (bit 63)::

    first record  := 1 decided:1 1 0 decision:30 end:30
    other records := 1 decided:1 0 0 start:30 end:30

Start and end are positions in the segment, from the batch's first byte to after its last one; a segment has at most 2^30
bytes, and ends with filler, so both fit. `decided` is set if a decision of a transaction belongs to the batch; `decision` is
then the low 30 bits of its number, and otherwise 0. A batch of one record without a decision needs no mark.

Marks are read from disk, and a foreign program may have written any number there: a mark counts only if it fits the place of
its record, and a batch is incomplete only if all its records, from the first to the last one there is, have fitting marks.
Copies of a record never have its mark.
"""

from typing import NamedTuple

from penstock.format.columns import RecordColumns
from penstock.format.record import BLANK_SIZE
from penstock.log.scan import Checks, scan_segment
from penstock.log.segmented_log import SegmentedLog

_MARK, _DECIDED, _FIRST, _RESERVED = 1 << 63, 1 << 62, 1 << 61, 1 << 60
_BITS = 30
_LOW = (1 << _BITS) - 1
_TWO_64 = 1 << 64
# A decision is known by these bits of its number.
DECISION_MASK = _LOW


class BatchMark(NamedTuple):
    """The content of the mark of one record.

    Attributes:
        is_first: whether the record is the first one of its batch.
        is_decided: whether a decision of a transaction belongs to the batch.
        start: the batch's first position in its segment; of a first record, that is not in the mark, and 0.
        end: the position after the batch.
        decision: in the mark of a first record, the low 30 bits of the decision's number; 0 without one.
    """

    is_first: bool
    is_decided: bool
    start: int
    end: int
    decision: int


def batch_marks(start: int, end: int, decision: int | None = None) -> tuple[int, int]:
    """Return the marks of the first and of all other records of a batch, as signed numbers."""
    if not 0 <= start < end <= _LOW:
        raise ValueError(f"no batch can be at the positions {start} to {end} of a segment")
    both = _MARK | (0 if decision is None else _DECIDED) | end
    first = both | _FIRST | ((decision or 0) & DECISION_MASK) << _BITS
    return first - _TWO_64, (both | start << _BITS) - _TWO_64


def is_mark(number: int) -> bool:
    """Return whether a PREPAREDTRANSACTIONOFFSET is a mark, well-formed or not."""
    return number < 0


def read_mark(number: int) -> BatchMark | None:
    """Return what a PREPAREDTRANSACTIONOFFSET says if it is a well-formed mark; otherwise None."""
    bits = number + _TWO_64
    if number >= 0 or bits & _RESERVED:
        return None
    is_first, is_decided = bool(bits & _FIRST), bool(bits & _DECIDED)
    high, end = bits >> _BITS & _LOW, bits & _LOW
    if is_first:
        fits = end > 0 and (is_decided or high == 0)
        return BatchMark(True, is_decided, 0, end, high) if fits else None
    return BatchMark(False, is_decided, high, end, 0) if high < end else None


def find_incomplete(log: SegmentedLog, last: int, end: int, number: int) -> int | None:
    """Return the log offset of the batch that the log's last record belongs to if the end of the batch is missing.

    Args:
        log: the log.
        last: the log offset of the last valid record.
        end: the log offset after it, where the valid records end.
        number: PREPAREDTRANSACTIONOFFSET of that record.

    Returns:
        None if the record has no mark, its batch is whole, or not all records from the batch's first one on are its records.
    """
    segment, mark = log.find(last), read_mark(number)
    if segment is None or mark is None:
        return None
    start = last - segment.base_offset if mark.is_first else mark.start
    is_possible = end - segment.base_offset < mark.end <= segment.capacity - BLANK_SIZE
    if not is_possible or (not mark.is_first and mark.start >= last - segment.base_offset):
        return None
    begin = segment.base_offset + start
    run, reached = BatchRun(start, mark), begin
    for records, reached, _ in scan_segment(log, segment, begin, end, Checks(log.coverage)):  # noqa: B007 - the last one counts
        if not run.has_all(records):
            return None
    return begin if reached == end else None


class BatchRun:
    """The records of one batch, checked in the order of the log. Not thread-safe."""

    def __init__(self, start: int, mark: BatchMark) -> None:
        """`start` is the batch's position, `mark` that of any of its records."""
        decision = 0 if mark.is_decided else None
        self._mark = mark
        self._other = batch_marks(start, mark.end, decision)[1]
        self._time_ms: int | None = None

    def has_all(self, records: RecordColumns) -> bool:
        """Return whether the next records belong to the batch, by their marks and store times."""
        if len(records) == 0:
            return True
        numbers, times = records.prepared_offsets, records.store_times_ms
        if self._time_ms is None:
            self._time_ms = int(times[0])
            first = read_mark(int(numbers[0]))
            if first is None or not first.is_first or first.end != self._mark.end:
                return False
            if first.is_decided != self._mark.is_decided:
                return False
            numbers = numbers[1:]
        return bool((numbers == self._other).all() and (times == self._time_ms).all())
