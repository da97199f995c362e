"""The log walked from one offset to another, as batches of records for dispatchers."""

from collections.abc import Iterator

from penstock.batch import DispatchBatch
from penstock.columns import Columns, Walk, walk
from penstock.log import SegmentedLog
from penstock.segment import Segment

# A batch is at most so many bytes of log.
BATCH_BYTES = 8 << 20


def read_batches(log: SegmentedLog, start: int, stop: int) -> Iterator[DispatchBatch]:
    """Return the records in [start, stop) as batches; `start` must begin a record.

    The lengths and the place of every record are checked, CRCs are not. Ends early where the bytes are
    no sound record; the last batch's `end_offset` says where.
    """
    at = start
    while at < stop:
        with log.lease(at) as segment:
            limit = min(stop, segment.end_offset, at + BATCH_BYTES)
            window = log.read(at, limit - at)
            found = walk(window)
            if (
                not found.positions
                and found.reason == "end"
                and limit < min(stop, segment.end_offset)
            ):
                # One record larger than a batch.
                limit = min(stop, segment.end_offset)
                window = log.read(at, limit - at)
                found = walk(window)
            columns = Columns(window, found.positions, at)
            bad = columns.first_bad(check_crc=False)
            end = _end_of(found, at, segment, columns, bad)
            if end == at:
                return
            yield DispatchBatch(columns if bad is None else columns.head(bad), at, end)
            if bad is not None or found.reason == "bad":
                return
        at = end


def _end_of(found: Walk, at: int, segment: Segment, columns: Columns, bad: int | None) -> int:
    if bad is not None:
        return at + int(columns.positions[bad])
    if found.reason == "blank":
        return segment.end_offset
    return at + found.stop
