"""The only scanner of the log: valid records of a segment, window by window, and the reason why they end.

The kernel follows the record sizes through a window and checks each record (see `validity`). This module decides how
much is read: a record larger than the window is read by its stated size, but memory is allocated for that size only if
the file is long enough.

A copy of the bytes is scanned, so that a failing disk raises `OSError` instead of killing the process by a signal. Only
the follower in the process that holds the writer's lock, and a lease on the segment, scans the map itself.

A scan that stops at corrupt bytes continues after them if a repair has noted them (decision 25). The note counts only while
the range has the bytes for which it was made, and a valid record follows: so a note that is old or damaged hides no
valid record, and never moves the log's end.
"""

import enum
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock import _kernel
from penstock.format.columns import ScannedColumns
from penstock.format.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.format.validity import NO_COVERAGE, Coverage
from penstock.log.segment import Segment
from penstock.log.segmented_log import Quarantined, SegmentedLog

WINDOW_BYTES = 8 << 20
# Sectors reach the disk whole.
SECTOR_BYTES = 512


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

    A result with `QUARANTINED` has no records: it is the quarantined range from the end of the one before on, and the scan
    continues after it, except at the segment's end. Otherwise the last result is the only one whose `stop` is not `MORE`. If
    `window_bytes` is given, windows grow from that size.
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
    """Return the valid records in the first bytes of [start, stop): at least one, if a valid record begins at `start`."""
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
    segment = log.find(at)
    for noted in log.quarantined.values():
        if segment is not None and segment.base_offset <= noted.start <= at < noted.stop:
            is_within = noted.stop <= segment.end_offset and is_followed(log, noted.stop)
            if is_within and note_of(log, segment, noted.start, noted.stop) == noted:
                return noted
    return None


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
