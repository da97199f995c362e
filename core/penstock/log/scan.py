"""The only scanner of the log: valid records of a segment, window by window, and the reason why they end.

The kernel follows the record sizes through a window and checks each record (see `validity`). This module decides how
much is read: a record larger than the window is read by its stated size, but memory is allocated for that size only if
the file is long enough.

A copy of the bytes is scanned, so that a failing disk raises `OSError` instead of killing the process by a signal. Only
the follower in the process that holds the writer's lock, and a lease on the segment, scans the map itself.
"""

import enum
from collections.abc import Iterator
from typing import NamedTuple

from penstock import _kernel
from penstock.format.columns import ScannedColumns
from penstock.format.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.format.validity import NO_COVERAGE, Coverage
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

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

    The last result is the only one whose `stop` is not `MORE`. If `window_bytes` is given, windows grow from that size.
    """
    size = window_bytes or WINDOW_BYTES
    while True:
        scanned = scan_window(
            log, segment, start, stop, checks, window_bytes=size, is_copied=is_copied
        )
        yield scanned
        if scanned.stop is not StopReason.MORE:
            return
        start = scanned.end_offset
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


def is_filler(log: SegmentedLog, segment: Segment, at: int) -> bool:
    """Return whether a blank record at `at` fills the segment to its end."""
    left = segment.end_offset - at
    if left < BLANK_SIZE:
        return False
    return SIZE_AND_MAGIC.unpack(log.read_from(segment, at, SIZE_AND_MAGIC.size)) == (
        left,
        MAGIC_BLANK,
    )
