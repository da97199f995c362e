"""The log walked from one offset to another, as batches of records for dispatchers."""

from collections.abc import Iterator

from penstock.batch import DispatchBatch
from penstock.columns import Columns
from penstock.escape import get_logger
from penstock.log import SegmentedLog
from penstock.segment import Segment
from penstock.survivors import find_survivor
from penstock.walking import Walk, walk

logger = get_logger(__name__)

# A batch is at most so many bytes of log: what is made of it then stays in the cache of a core.
BATCH_BYTES = 2 << 20


def read_batches(
    log: SegmentedLog,
    start: int,
    stop: int,
    *,
    check_crc: bool = False,
) -> Iterator[DispatchBatch]:
    """Return the records in [start, stop) as batches; `start` must begin a record.

    The lengths and the place of every record are checked, CRCs only where that is asked for. The batch before
    corrupt bytes ends where the next valid record with a witness begins (see `survivors`), or where the segment
    ends, so that none after them is left out.
    """
    at = start
    while at < stop:
        with log.lease(at) as segment:
            limit = min(stop, segment.end_offset, at + BATCH_BYTES)
            window = log.read(at, limit - at)
            found = walk(window)
            if limit - at < found.first_size <= min(stop, segment.end_offset) - at:
                # One record larger than a batch.
                limit = at + found.first_size
                window = log.read(at, limit - at)
                found = walk(window)
            columns = Columns(window, found.positions, at)
            bad = columns.first_bad(check_crc=check_crc, coverage=log.coverage)
            good = columns if bad is None else columns.head(bad)
            end = _end_of(found, at, segment, columns, bad)
            if bad is not None or found.reason == "bad" or end == at:
                end = min(_behind_damage(log, segment, end), stop)
            yield DispatchBatch(good, at, end)
        at = end


def _behind_damage(log: SegmentedLog, segment: Segment, at: int) -> int:
    """Return where the records go on behind bytes that are none."""
    following = find_survivor(log, segment, at)
    end = segment.end_offset if following is None else following
    logger.error("%s: %d bytes at log offset %d are not a valid record", segment.path, end - at, at)
    return end


def _end_of(found: Walk, at: int, segment: Segment, columns: Columns, bad: int | None) -> int:
    if bad is not None:
        return at + int(columns.positions[bad])
    if found.reason == "blank":
        return segment.end_offset
    return at + found.stop
