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
from penstock.log import SegmentedLog
from penstock.spans import Places, QueueSpan, Rows, Window
from penstock.stored import StoredMessage

# Fewer cost less one by one.
LEAST = 48
# So many bytes of records are looked at together.
_BYTES = 4 << 20


def read_sound(
    log: SegmentedLog, entries: QueueEntries, span: QueueSpan
) -> list[StoredMessage] | None:
    """Return the messages of the queue entries of a span, or None if not every one of them is there and sound."""
    offsets, sizes = entries.log_offsets, entries.sizes
    if len(sizes) != span.stop - span.start or not _in_order(log, offsets, sizes):
        return None
    window, places = Window(log), Places([span])
    ordinals = np.arange(span.start, span.stop, dtype=np.int64)
    rows = Rows(np.zeros(len(sizes), np.int64), ordinals, offsets, sizes)
    found: list[StoredMessage] = []
    try:
        for low, high in _pieces(log, offsets, sizes):
            with log.lease(int(offsets[low])):
                part = rows.part(low, high)
                records = window.records(part)
                if not _are_sound(records, part, places):
                    return None
                found += _messages(records)
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
    places = np.cumsum(sizes) // _BYTES
    segments = offsets // log.segment_bytes
    breaks = (places[1:] != places[:-1]) | (segments[1:] != segments[:-1])
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(sizes)]
    return list(itertools.pairwise(edges))


def _are_sound(records: Columns, rows: Rows, places: Places) -> bool:
    if records.first_bad(check_crc=False) is not None or not (records.sizes == rows.sizes).all():
        return False
    return bool(places.are_at(records, rows).all() and records.crc_is_right().all())


def _messages(records: Columns) -> list[StoredMessage]:
    """Return a copy of each record as a message."""
    window = records.window
    if 2 * int(records.sizes.sum()) >= len(window):
        # Little lies between them: copied whole, and cut.
        window = bytes(window)
    starts, body_starts = records.positions, records.body_starts - records.positions
    return [
        StoredMessage(bytes(window[start:end]), slice(body, body_end))
        for start, end, body, body_end in zip(
            starts.tolist(),
            (starts + records.sizes).tolist(),
            body_starts.tolist(),
            (body_starts + records.body_sizes).tolist(),
            strict=True,
        )
    ]
