"""The one scanner of the log: valid records of a segment, window by window, and why they end.

The kernel follows the size chain of a window and checks each record (see `validity`). Here it is decided how much is
read: a record larger than the window is read by its size, but a size that is only claimed makes no memory.

What is scanned is a copy, so that a failing disk is an `OSError` and not a signal; only the follower of the process
that holds the writer's lock, and holds a lease on the segment, looks at the map itself.
"""

import enum
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock import _kernel
from penstock.format.columns import ROW, RecordColumns
from penstock.format.record import SIZE_AND_MAGIC
from penstock.format.validity import NO_COVERAGE, Coverage
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

WINDOW_BYTES = 8 << 20
# Sectors reach the disk whole.
SECTOR_BYTES = 512


class Checks(NamedTuple):
    """What is checked of a record beside its lengths and its stated log offset.

    Attributes:
        coverage: where records end in a CRC of their own.
        crc: whether CRCs are checked.
        torn_from: from this log offset on Penstock wrote, and perhaps did not sync: a topic or properties text that
            looks like a sector never written makes a record invalid. None for nowhere.
    """

    coverage: Coverage = NO_COVERAGE
    crc: bool = True
    torn_from: int | None = None


class StopReason(enum.Enum):
    """Why valid records end; the value is a sentence about the bytes there."""

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
    """Valid records of one window, where they end, and why; the memory is lent."""

    records: RecordColumns
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
    """Yield the valid records in [start, stop) of a segment, window by window; `start` must begin a record.

    Only the last one has another `stop` than `MORE`. Windows grow from `window_bytes` on, where that is given.
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
    """Return the valid records in the first bytes of [start, stop), one at least if one is valid."""
    left = stop - start
    size = min(max(window_bytes, SIZE_AND_MAGIC.size), left)
    scanned, claimed = _scan(log, segment, start, size, checks, is_copied=is_copied)
    is_larger = scanned.stop is StopReason.MORE and len(scanned.records) == 0 and size < left
    if is_larger:
        # One record, or the claim of one, is larger than the window.
        if not size < claimed <= left or not segment.has(start - segment.base_offset, claimed):
            return scanned._replace(stop=StopReason.CUT)
        size = claimed
        scanned, _ = _scan(log, segment, start, size, checks, is_copied=is_copied)
    if scanned.stop is StopReason.MORE:
        if scanned.end_offset == stop:
            return scanned._replace(stop=StopReason.END)
        if size == left:
            return scanned._replace(stop=StopReason.CUT)
    return scanned


def _scan(
    log: SegmentedLog, segment: Segment, start: int, size: int, checks: Checks, *, is_copied: bool
) -> tuple[Scanned, int]:
    """Return the valid records of one window, and the size that the bytes after them claim."""
    window = log.read_from(segment, start, size, is_copied=is_copied)
    asked = (_kernel.CRC if checks.crc else 0) | (0 if checks.torn_from is None else _kernel.TORN)
    rows, end, state, claimed = _kernel.scan(
        window, start, asked, checks.coverage.packed, checks.torn_from or 0, SECTOR_BYTES
    )
    fields = np.frombuffer(rows, ROW)
    records = RecordColumns(window, fields, fields["log_offset"])
    return Scanned(records, start + end, _REASONS.get(state, StopReason.MORE)), claimed
