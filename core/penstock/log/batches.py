"""The log from one offset to another, as batches of records for dispatchers."""

from collections.abc import Iterator

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.escape import get_logger
from penstock.log.resync import find_next_valid
from penstock.log.scan import Checks, Scanned, StopReason, scan_window
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)

# A batch is at most so many bytes of log: less stays in the cache of a core, more takes the interpreter from appenders less often.
BATCH_BYTES = 4 << 20
# Where CRCs are checked, as at an opening, more of it: what is asked once a batch of each queue is asked less often.
_CHECKED_BATCH_BYTES = 8 << 20
_GOES_ON = (StopReason.MORE, StopReason.END, StopReason.FILLER)


def read_batches(
    log: SegmentedLog,
    start: int,
    stop: int,
    *,
    check_crc: bool = False,
    is_copied: bool = False,
) -> Iterator[DispatchBatch]:
    """Return the records in [start, stop) as batches; `start` must begin a record.

    The lengths and the place of every record are checked, CRCs only where that is asked for. The batch before
    corrupt bytes ends where the next valid record with a witness begins (see `resync`), or where the segment
    ends, so that none after them is left out. A mapped log is copied only where
    that is asked for (see `scan`).
    """
    at, size = start, _CHECKED_BATCH_BYTES if check_crc else BATCH_BYTES
    while at < stop:
        with log.lease(at) as segment:
            limit = min(stop, segment.end_offset)
            checks = Checks(log.coverage, crc=check_crc)
            scanned = scan_window(
                log, segment, at, limit, checks, window_bytes=size, is_copied=is_copied
            )
            end = _end_of(log, segment, scanned, stop)
            yield DispatchBatch(scanned.records, at, end)
        at = end


def _end_of(log: SegmentedLog, segment: Segment, scanned: Scanned, stop: int) -> int:
    """Return where the records go on: after filler, and after bytes that are none."""
    at = scanned.end_offset
    if scanned.stop is StopReason.FILLER:
        return segment.end_offset
    if scanned.stop in _GOES_ON:
        return at
    following = find_next_valid(log, segment, at)
    end = segment.end_offset if following is None else following
    logger.error("%s: %d bytes at log offset %d are not a valid record", segment.path, end - at, at)
    return min(end, stop)
