"""The only scanner of the log: valid records of a segment by windows, why they end, and the marks of atomic batches.

The kernel follows the record sizes through a window and checks each record (see `validity`). This module decides how
much is read: a record larger than the window is read by its stated size, but memory is allocated for that size only if
the file is long enough.

A copy of the bytes is scanned, so that a failing disk raises `OSError` instead of killing the process by a signal. Only
the follower in the process that holds the writer's lock, and a lease on the segment, scans the map itself.

A scan that stops at corrupt bytes continues after them if a repair has noted them (decision 25). The note counts only
while the range has the bytes for which it was made, and a valid record follows, at once or after other such ranges: so
a note that is old or damaged hides no valid record, and never moves the log's end.

The records of an atomic batch are in the log all together, or not at all, also after a crash. They are in one segment,
one after the other, and have the same store time. Each carries a mark in PREPAREDTRANSACTIONOFFSET, a field that
brokers do not read in a plain message. With the marks, recovery finds a batch whose end is missing, and cuts the log
where the batch begins; no second sync is needed. A mark is a negative i64 (bit 63)::

    first record  := 1 decided:1 1 0 decision:30 end:30
    other records := 1 decided:1 0 0 start:30 end:30

Start and end are positions in the segment, from the batch's first byte to after its last one; a segment has at most
2^30 bytes, and ends with filler, so both fit. `decided` is set if a decision of a transaction belongs to the batch;
`decision` is then the low 30 bits of its number, and otherwise 0. A batch of one record without a decision needs no
mark.

Marks are read from disk, and a foreign program may have written any number there: a mark counts only if it fits the
place of its record, and a batch is incomplete only if all its records, from the first to the last one there is, have
fitting marks. Copies of a record never have its mark.
"""

import enum
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock import _kernel
from penstock.format.columns import RecordColumns, ScannedColumns
from penstock.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.format.validity import NO_COVERAGE, Coverage
from penstock.log.segment import Segment
from penstock.log.segmented_log import Quarantined, SegmentedLog

WINDOW_BYTES = 8 << 20
# Sectors reach the disk whole.
SECTOR_BYTES = 512
# This many zeros at the end of a sector show that it was not written, in a range not known to be durable.
TORN_BYTES = 8


class Checks(NamedTuple):
    """The checks of a record in addition to its lengths and its stated log offset.

    Attributes:
        coverage: the ranges in which records end in a CRC of their own.
        crc: whether CRCs are checked.
        torn_from: from this log offset on Penstock may have written records without a sync: there, a record is invalid
            if its topic or properties text looks like a sector that was never written. None disables this check.
    """

    coverage: Coverage = NO_COVERAGE
    crc: bool = True
    torn_from: int | None = None


class StopReason(enum.Enum):
    """Why valid records end; the value describes the bytes at that place."""

    MORE = "the window ends there"
    END = "all was scanned"
    FILLER = "filler begins there"
    NO_RECORD = "no record begins there"
    INVALID = "a record there is not valid"
    CUT = "the record there does not end within its segment"
    QUARANTINED = "a quarantined range ends there"


# The reasons that corrupt bytes give.
CORRUPT = (StopReason.NO_RECORD, StopReason.INVALID, StopReason.CUT)
_REASONS = {
    _kernel.BLANK: StopReason.FILLER,
    _kernel.NONE: StopReason.NO_RECORD,
    _kernel.INVALID: StopReason.INVALID,
}


class Scanned(NamedTuple):
    """Valid records of one window, where they end, and why; a later scan may reuse the memory."""

    records: ScannedColumns
    end_offset: int
    stop: StopReason


def scan_segment(
    log: SegmentedLog,
    segment: Segment,
    start: int,
    stop: int,
    checks: Checks,
    *,
    window_bytes: int = 0,
    is_copied: bool = True,
) -> Iterator[Scanned]:
    """Yield the valid records in [start, stop) of a segment, window by window; a record must begin at `start`.

    A result with `QUARANTINED` has no records: it is the quarantined range from the end of the one before on, and the
    scan continues after it, except at the segment's end. Otherwise the last result is the only one whose `stop` is not
    `MORE`. If `window_bytes` is given, windows grow from that size.
    """
    size = window_bytes or WINDOW_BYTES
    while True:
        scanned = scan_window(
            log, segment, start, stop, checks, window_bytes=size, is_copied=is_copied
        )
        start = scanned.end_offset
        noted = quarantined_at(log, start) if scanned.stop in CORRUPT else None
        if noted is not None and noted.stop <= stop:
            yield scanned._replace(stop=StopReason.MORE)
            start = noted.stop
            yield Scanned(ScannedColumns(b"", b"", start), start, StopReason.QUARANTINED)
            if start == segment.end_offset:
                return
            continue
        yield scanned
        if scanned.stop is not StopReason.MORE:
            return
        size = max(size, min(2 * size, WINDOW_BYTES))


def scan_window(
    log: SegmentedLog,
    segment: Segment,
    start: int,
    stop: int,
    checks: Checks,
    *,
    window_bytes: int,
    is_copied: bool = True,
) -> Scanned:
    """Return the valid records in the first bytes of [start, stop): at least one, if one begins at `start`."""
    left = stop - start
    size = min(max(window_bytes, SIZE_AND_MAGIC.size), left)
    scanned, claimed = _scan(log, segment, start, size, checks, is_copied=is_copied)
    is_larger = scanned.stop is StopReason.MORE and len(scanned.records) == 0 and size < left
    if is_larger:
        # The next record, or the size that corrupt bytes state, is larger than the window.
        if not size < claimed <= left or not segment.has(start - segment.base_offset, claimed):
            return scanned._replace(stop=StopReason.CUT)
        size = claimed
        scanned, _ = _scan(log, segment, start, size, checks, is_copied=is_copied)
    if scanned.stop is StopReason.MORE:
        if scanned.end_offset == stop:
            return Scanned(scanned.records, stop, StopReason.END)
        if size == left:
            return scanned._replace(stop=StopReason.CUT)
    return scanned


def _scan(
    log: SegmentedLog, segment: Segment, start: int, size: int, checks: Checks, *, is_copied: bool
) -> tuple[Scanned, int]:
    """Return the valid records of one window, and the record size that the bytes after them state."""
    window = log.read_from(segment, start, size, is_copied=is_copied)
    asked = (_kernel.CRC if checks.crc else 0) | (0 if checks.torn_from is None else _kernel.TORN)
    rows, end, state, claimed = _kernel.scan(
        window, start, asked, checks.coverage.packed, checks.torn_from or 0, SECTOR_BYTES
    )
    records = ScannedColumns(window, rows, start + end)
    return Scanned(records, start + end, _REASONS.get(state, StopReason.MORE)), claimed


def note_of(log: SegmentedLog, segment: Segment, start: int, stop: int) -> Quarantined:
    """Return the note of a range with the bytes that it has now."""
    digest = hashlib.sha256()
    for at in range(start, stop, WINDOW_BYTES):
        digest.update(log.read_from(segment, at, min(WINDOW_BYTES, stop - at), is_copied=True))
    return Quarantined(start, stop, digest.hexdigest())


def quarantined_at(log: SegmentedLog, at: int) -> Quarantined | None:
    """Return the quarantined range that has the corrupt byte at `at`; None if there is none that counts.

    A scan stops within it if its first record passes the fewer checks that count for another program's records.
    """
    for noted in log.quarantined.values():
        is_within = noted.start <= at < noted.stop
        if is_within and _leads_to_record(log, noted.stop) and _has_its_bytes(log, noted):
            return noted
    return None


def _leads_to_record(log: SegmentedLog, stop: int) -> bool:
    """Return whether a valid record begins where a range ends, or after other noted ranges that follow it at once.

    Corruption across the end of a segment is one range in each. The bytes of those that follow are read only once.
    """
    while (noted := log.quarantined.get(stop)) is not None and (
        noted in log.matching or (not is_followed(log, stop) and _has_its_bytes(log, noted))
    ):
        stop = noted.stop
    return is_followed(log, stop)


def _has_its_bytes(log: SegmentedLog, noted: Quarantined) -> bool:
    """Return whether a range is within one segment and has the bytes for which its note was made."""
    start, stop, segment = noted.start, noted.stop, log.find(noted.start)
    if segment is None or not start < stop <= segment.end_offset:
        return False
    if note_of(log, segment, start, stop) != noted:
        return False
    log.matching.add(noted)
    return True


def is_followed(log: SegmentedLog, stop: int) -> bool:
    """Return whether a valid record begins where a range ends, which may be in the next segment."""
    segment = log.find(stop)
    if segment is None:
        return False
    end, checks = segment.end_offset, Checks(log.coverage)
    return len(scan_window(log, segment, stop, end, checks, window_bytes=SECTOR_BYTES).records) > 0


def is_filler(log: SegmentedLog, segment: Segment, at: int) -> bool:
    """Return whether a blank record at `at` fills the segment to its end."""
    left = segment.end_offset - at
    if left < BLANK_SIZE:
        return False
    return SIZE_AND_MAGIC.unpack(log.read_from(segment, at, SIZE_AND_MAGIC.size)) == (
        left,
        MAGIC_BLANK,
    )


def is_torn_filler(log: SegmentedLog, segment: Segment, at: int) -> bool:
    """Return whether a power cut tore the head of filler at `at`, where the records of a segment end.

    Either the magic is there, in the next sector, and bytes of the size are still zero; or, in the last bytes of a
    segment, the size and a part of the magic. Of longer filler that is only begun, the zeros at the sector's end tell.
    Without a segment behind it nothing is missing.
    """
    left = segment.end_offset - at
    if left < BLANK_SIZE or is_filler(log, segment, at):
        return False
    there = bytes(log.read_from(segment, at, min(left, BLANK_SIZE + TORN_BYTES)))
    whole = BLANK.pack(left, MAGIC_BLANK)
    size = SIZE_AND_MAGIC.size // 2
    if there[size:BLANK_SIZE] == whole[size:]:
        return all(byte in (0, right) for byte, right in zip(there[:size], whole, strict=False))
    begun = len(there.rstrip(b"\0"))
    return (
        left < BLANK_SIZE + TORN_BYTES
        and size <= begun < BLANK_SIZE
        and there[:begun] == whole[:begun]
        and log.find(segment.end_offset) is not None
    )


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
        None if the record has no mark, its batch is whole, or not all records from the batch's first one on are its
        records.
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
    for records, reached, _ in scan_segment(log, segment, begin, end, Checks(log.coverage)):  # noqa: B007
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
