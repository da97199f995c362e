"""A stretch of a queue as messages, its records fetched and checked together.

The checks are those of `fetch`, made on columns. Where any of them says no, or anything else is not as usual,
the answer is None: then whoever asked looks at the records one by one, which tells them apart.
"""

import itertools

import numpy as np

from penstock.columns import Columns
from penstock.contracts import QueueEntries
from penstock.errors import CorruptionError, OffsetError
from penstock.javatext import Int64s
from penstock.joining import overlapping
from penstock.log import SegmentedLog
from penstock.spans import Places, QueueSpan, Rows, Window
from penstock.stored import StoredMessage
from penstock.validity import Coverage

# Fewer cost less one by one.
LEAST = 20
# So many bytes of records are looked at together.
_BYTES = 4 << 20
_ALIKE_BYTES = 2048


def read_sound(
    log: SegmentedLog, entries: QueueEntries, span: QueueSpan
) -> list[StoredMessage] | None:
    """Return the messages of the queue entries of a span, or None if not every one of them is there and sound."""
    offsets, sizes = entries.log_offsets, entries.sizes
    if len(sizes) != span.stop - span.start or not _in_order(log, offsets, sizes):
        return None
    window = Window(log)
    ordinals = np.arange(span.start, span.stop, dtype=np.int64)
    rows = Rows(np.zeros(len(sizes), np.int64), ordinals, offsets, sizes)
    found: list[StoredMessage] = []
    try:
        for low, high in _pieces(log, offsets, sizes):
            with log.lease(int(offsets[low])):
                part = rows.part(low, high)
                messages = _messages(log, window.records(part), part, span)
            if messages is None:
                return None
            found += messages
    except (OffsetError, CorruptionError):
        return None
    return found


def _in_order(log: SegmentedLog, offsets: Int64s, sizes: Int64s) -> bool:
    """Say whether entries point forwards into the log, each behind the one before."""
    ends = offsets + sizes
    return bool(
        sizes.min() > 0
        and offsets[0] >= 0
        and ends[-1] <= log.next_free_base()
        and (offsets[1:] >= ends[:-1]).all()
    )


def _pieces(log: SegmentedLog, offsets: Int64s, sizes: Int64s) -> list[tuple[int, int]]:
    """Cut entries where a segment ends, and where enough bytes have come together."""
    first, last = int(offsets[0]), int(offsets[-1])
    if first // log.segment_bytes == last // log.segment_bytes and last - first < _BYTES:
        return [(0, len(sizes))]
    places = np.cumsum(sizes) // _BYTES
    segments = offsets // log.segment_bytes
    breaks = (places[1:] != places[:-1]) | (segments[1:] != segments[:-1])
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(sizes)]
    return list(itertools.pairwise(edges))


def _messages(
    log: SegmentedLog, records: Columns, rows: Rows, span: QueueSpan
) -> list[StoredMessage] | None:
    """Return a copy of each record as a message; None if any is not valid, or of another queue."""
    if not _are_valid(records, rows, Places([span]), log.coverage):
        return None
    starts = records.body_starts - records.positions
    places = list(map(slice, starts.tolist(), (starts + records.body_sizes).tolist()))
    return list(map(StoredMessage, _cut(records, rows.sizes), places))


def _are_valid(records: Columns, rows: Rows, places: Places, coverage: Coverage) -> bool:
    if records.first_bad(check_crc=True, coverage=coverage) is not None:
        return False
    return bool((records.sizes == rows.sizes).all() and places.are_at(records, rows).all())


def _cut(records: Columns, sizes: Int64s) -> list[bytes]:
    """Return a copy of each record."""
    starts, size = records.positions, int(sizes[0])
    if size <= _ALIKE_BYTES and (sizes == size).all():
        # numpy moves values of one size whole.
        alike: list[bytes] = overlapping(records.raw, size)[starts].tolist()
        return alike
    bounds = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    if 2 * int(sizes.sum()) >= len(records.window):
        # Little lies between them: copied whole, and cut.
        whole = bytes(records.window)
        return [whole[start:end] for start, end in bounds]
    window = records.window
    return [bytes(window[start:end]) for start, end in bounds]
