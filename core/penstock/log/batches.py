"""The log from one offset to another, as batches of records for dispatchers."""

from collections.abc import Iterator

from penstock import _kernel
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.escape import get_logger
from penstock.format.columns import ScannedColumns
from penstock.log.resync import find_next_valid
from penstock.log.scan import CORRUPT, Checks, Scanned, StopReason, quarantined_at, scan_window
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)

# The maximum bytes of log in a batch: smaller batches stay in a core's cache, larger ones hold the GIL less often.
BATCH_BYTES = 4 << 20
# What a follower that keeps up finds: a record, or some.
SHORT_BYTES = 64 << 10
# Larger if CRCs are checked, as at an opening: work that is done for each queue in each batch is done less often.
_CHECKED_BATCH_BYTES = 8 << 20


def read_batches(
    log: SegmentedLog,
    start: int,
    stop: int,
    *,
    check_crc: bool = False,
    is_copied: bool = False,
) -> Iterator[DispatchBatch]:
    """Return the records in [start, stop) as batches; a record must begin at `start`.

    The lengths and the stated log offset of every record are checked, CRCs only with `check_crc`. If a batch meets corrupt
    bytes, its range extends to the next valid record that has a witness (see `resync`), or to the segment's end, so that
    no record after the corrupt bytes is skipped. A mapped log is copied only with `is_copied` (see `scan`).
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


def read_short(
    log: SegmentedLog, segment: Segment, start: int, stop: int, *, check_crc: bool
) -> DispatchBatch | None:
    """Return the records in [start, stop) as `read_batches` does, without a copy; None if it is not just valid records.

    For ranges of up to `SHORT_BYTES`. The caller holds the segment until the batch is dispatched.
    """
    if stop > segment.end_offset:
        return None
    window = log.read_from(segment, start, stop - start)
    checks = _kernel.CRC if check_crc else 0
    rows, size, _, _ = _kernel.scan(window, start, checks, log.coverage.packed)
    if size != stop - start:
        return None
    return DispatchBatch(ScannedColumns(window, rows, stop), start, stop)


def _end_of(log: SegmentedLog, segment: Segment, scanned: Scanned, stop: int) -> int:
    """Return where the next records begin: after the scanned ones, and after filler or corrupt bytes that follow them."""
    at = scanned.end_offset
    if scanned.stop is StopReason.FILLER:
        return segment.end_offset
    if scanned.stop not in CORRUPT:
        return at
    if (noted := quarantined_at(log, at)) is not None:
        return min(noted.stop, stop)
    following = find_next_valid(log, segment, at)
    end = segment.end_offset if following is None else following
    logger.error(
        "%s: %d bytes at log offset %d are not a valid record; they are skipped, other records are not affected; see "
        "penstock verify", segment.path, end - at, at,
    )  # fmt: skip
    return min(end, stop)
