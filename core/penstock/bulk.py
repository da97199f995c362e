"""A stretch of a queue as messages, its records fetched and checked together.

The checks are those of `fetch`, made on columns. Where any of them says no, or anything else is not as usual,
the answer is None: then whoever asked looks at the records one by one, which tells them apart.
"""

import itertools
from operator import getitem

import numpy as np

from penstock.columns import Columns
from penstock.contracts import QueueEntries
from penstock.errors import CorruptionError, OffsetError
from penstock.fetch import is_shared
from penstock.javatext import Int64s
from penstock.joining import overlapping
from penstock.log import SegmentedLog
from penstock.plain import BODY_AT, sizes_and_crcs
from penstock.record import CRC_MASK, crc32
from penstock.spans import Places, QueueSpan, Rows, Window
from penstock.stored import StoredMessage


class _Bodies(dict[int, slice]):
    """Where the body lies in a record of the usual shape, by its size."""

    def __missing__(self, size: int) -> slice:
        if len(self) >= _BODIES_MAX:
            self.clear()
        made = self[size] = slice(BODY_AT, BODY_AT + size)
        return made


# Fewer cost less one by one.
LEAST = 20
# So many bytes of records are looked at together.
_BYTES = 4 << 20
_BODIES_MAX = 4096
_ALIKE_BYTES = 2048
# Where one is longer, bodies are not kept beside their records until somebody looks at them.
_KEPT_BYTES = 4096
_BODIES = _Bodies()


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
                messages = _messages(window.records(part), part, span)
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


def _messages(records: Columns, rows: Rows, span: QueueSpan) -> list[StoredMessage] | None:
    """Return a copy of each record as a message; None if any is not sound, or of another queue."""
    known = None if is_shared(span.topic) else sizes_and_crcs(
        records, topic=span.topic, queue=span.queue, ordinals=rows.ordinals, sizes=rows.sizes
    )  # fmt: skip
    if known is not None:
        body_sizes, crcs = known
        cut = _cut(records, rows.sizes)
        places = list(map(_BODIES.__getitem__, body_sizes.tolist()))
        bodies: list[bytes] = list(map(getitem, cut, places))  # type: ignore[arg-type] # slices of bytes
        made = np.fromiter(map(crc32, bodies), np.int64, len(cut))
        if ((made & CRC_MASK) != crcs).any():
            return None
        if int(body_sizes.max()) > _KEPT_BYTES:
            return list(map(StoredMessage, cut, places))
        return list(map(StoredMessage, cut, places, bodies))
    if not _are_sound(records, rows, Places([span])):
        return None
    starts = records.body_starts - records.positions
    places = list(map(slice, starts.tolist(), (starts + records.body_sizes).tolist()))
    return list(map(StoredMessage, _cut(records, rows.sizes), places))


def _are_sound(records: Columns, rows: Rows, places: Places) -> bool:
    if records.first_bad(check_crc=False) is not None or not (records.sizes == rows.sizes).all():
        return False
    return bool(places.are_at(records, rows).all() and records.crc_is_right().all())


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
