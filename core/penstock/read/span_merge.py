"""Reads ranges of multiple queues together, in the order of the log.

The records of all queues are interleaved in one log: reading queue after queue would read the log once per queue. So
the entries are merged by log offset first, and the log is read once. If the log is not mapped, its bytes are read
into one buffer that is reused for each batch (fresh pages cost more than the copy), so data of a batch must be
copied before the next batch is requested.

Invariants:
    * A batch is within one segment, in ascending order, and no two of its records overlap.
    * The entries of each queue are in queue order; the records they point to have not been checked.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock import _kernel
from penstock.contracts import EntryChunk, QueueReader
from penstock.errors import CorruptionError, OffsetError
from penstock.format.arrays import Bools, Int64s, np
from penstock.format.columns import Buffer
from penstock.format.record import FIXED_SIZE
from penstock.log.record_reader import GAP_BYTES
from penstock.log.segmented_log import SegmentedLog

# The maximum number of entries in memory, shared among the spans; and the minimum number read at a time.
_HELD = 65_536
_CHUNK_MIN = 256
# If records have at least this mean size, bodies that are not needed are not read: two short reads are cheaper.
_LONG_BYTES = 32 << 10
# The size of the fields before the body, with both hosts in IPv6.
_HEAD_BYTES = 112
# Maximum span of one batch in bytes: of memory, or of a mapped file (offsets into a view are int32).
_WINDOW_BYTES = 32 << 20
_MAPPED_BYTES = 256 << 20
_NO_LIMIT = 1 << 62


class QueueSpan(NamedTuple):
    """Messages [start, stop) of one queue."""

    topic: str
    queue: int
    start: int
    stop: int


# Called with messages that were deleted, and with the log's error, or None if the queue's file is missing.
Lost = Callable[[QueueSpan, OffsetError | None], None]
MayMatch = Callable[[Int64s], Bools]


class Limits(NamedTuple):
    """Maximum size of a batch: rows, and bytes of its records (a batch always has at least one record)."""

    rows: int
    size: int = _NO_LIMIT


class EntryRows(NamedTuple):
    """Entries in the order of the log: number of the span, ordinal in its queue, log offset and size."""

    spans: Int64s
    ordinals: Int64s
    offsets: Int64s
    sizes: Int64s

    def part(self, low: int, high: int) -> "EntryRows":
        """Return the entries [low, high)."""
        return EntryRows(*(column[low:high] for column in self))


def refuse_lost(_span: QueueSpan, error: OffsetError | None) -> None:
    """Raise for records that were deleted from the log; a missing queue file is skipped, as in `read`."""
    if error is not None:
        raise error


class _Feed:
    """Reads the entries of one span, a chunk at a time."""

    def __init__(self, number: int, span: QueueSpan, chunks: Iterator[EntryChunk]) -> None:
        self.number = number
        self.span = span
        self.at = span.start
        self._chunks = chunks
        self._end = 0
        self.rows = _nothing()

    @property
    def is_done(self) -> bool:
        """Whether all entries were read."""
        return self.at >= self.span.stop

    def fill(self, log: SegmentedLog, may_match: MayMatch, lost: Lost) -> None:
        """Read chunks until there are matching entries, or the span ends."""
        while not len(self.rows.offsets) and not self.is_done:
            found = next(self._chunks, None)
            start = self.span.stop if found is None else found.start
            if start > self.at:
                # A whole queue file is missing.
                lost(self.span._replace(start=self.at, stop=start), None)
            self.at = start
            if found is None:
                return
            self.at += len(found.sizes)
            present = np.nonzero(found.sizes)[0]
            offsets, sizes = found.log_offsets[present], found.sizes[present]
            self._check_order(log, offsets, sizes)
            wanted = may_match(found.tag_codes[present])
            if not wanted.all():
                present, offsets, sizes = present[wanted], offsets[wanted], sizes[wanted]
            numbers = np.full(len(present), self.number, np.int64)
            self.rows = EntryRows(numbers, start + present, offsets, sizes)

    def _check_order(self, log: SegmentedLog, offsets: Int64s, sizes: Int64s) -> None:
        """Raise `CorruptionError` unless each entry points into one segment, after the record of the one before."""
        if len(offsets) == 0:
            return
        if (offsets >= log.next_free_base()).any() and not log.is_mapped:
            # Another process may have created a segment.
            log.refresh()
        wrong = (offsets < 0) | (offsets >= log.next_free_base()) | (sizes < FIXED_SIZE)
        wrong |= sizes > log.segment_bytes - offsets % log.segment_bytes
        wrong[0] |= bool(offsets[0] < self._end)
        wrong[1:] |= offsets[1:] - sizes[:-1] < offsets[:-1]
        if wrong.any():
            at = int(offsets[np.argmax(wrong)])
            path = log.folder.parent / "consumequeue" / self.span.topic / str(self.span.queue)
            raise CorruptionError(
                path, -1, "entries in the order of the log", f"one that points to {at}",
                "open the store for writing once, which repairs its queues; run penstock verify for details",
            )  # fmt: skip
        self._end = int(offsets[-1] + sizes[-1])

    def take(self, limit: int) -> EntryRows:
        """Remove and return the entries up to log offset `limit`."""
        count = int(np.searchsorted(self.rows.offsets, limit, side="right"))
        taken, self.rows = self.rows.part(0, count), self.rows.part(count, len(self.rows.offsets))
        return taken


def _nothing() -> EntryRows:
    return EntryRows(*(np.empty(0, np.int64) for _ in range(4)))


def _join(parts: Sequence[EntryRows]) -> EntryRows:
    held = [part for part in parts if len(part.offsets)]
    if len(held) <= 1:
        return held[0] if held else _nothing()
    columns = [np.concatenate(columns) for columns in zip(*held, strict=True)]
    if (columns[2][1:] >= columns[2][:-1]).all():
        return EntryRows(*columns)
    order = np.argsort(columns[2], kind="stable")
    return EntryRows(*(column[order] for column in columns))


def merged(
    log: SegmentedLog,
    index: QueueReader,
    spans: Sequence[QueueSpan],
    limits: Limits,
    may_match: MayMatch,
    lost: Lost,
) -> Iterator[EntryRows]:
    """Yield the entries of all spans in the order of the log, in batches."""
    chunk = max(_HELD // max(len(spans), 1), _CHUNK_MIN, min(limits.rows, _HELD))
    feeds = [
        _Feed(number, span, index.iter_entries(*span, chunk)) for number, span in enumerate(spans)
    ]
    rest = _nothing()
    while feeds:
        for feed in feeds:
            feed.fill(log, may_match, lost)
        feeds = [feed for feed in feeds if len(feed.rows.offsets)]
        # After this log offset there may be entries that have not been read yet.
        limit = min((int(f.rows.offsets[-1]) for f in feeds if not f.is_done), default=_NO_LIMIT)
        taken = _join([rest, *(feed.take(limit) for feed in feeds)])
        feeds = [feed for feed in feeds if len(feed.rows.offsets) or not feed.is_done]
        cuts = list(_cuts(log, taken, limits))
        # The last batch may still grow.
        kept = cuts.pop() if cuts and feeds else (0, 0)
        for low, high in cuts:
            yield taken.part(low, high)
        rest = taken.part(*kept)


def _cuts(log: SegmentedLog, rows: EntryRows, limits: Limits) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each batch."""
    count = len(rows.offsets)
    if count == 0:
        return
    ends = rows.offsets + rows.sizes
    places = rows.offsets // log.segment_bytes
    # The ends of segments, and records that begin within the one before (duplicates, or corruption).
    breaks = np.nonzero((places[1:] != places[:-1]) | (rows.offsets[1:] < ends[:-1]))[0] + 1
    window = _MAPPED_BYTES if log.is_mapped else _WINDOW_BYTES
    totals = np.cumsum(rows.sizes)
    low = following = 0
    while low < count:
        while following < len(breaks) and breaks[following] <= low:
            following += 1
        high = int(breaks[following]) if following < len(breaks) else count
        before = int(totals[low] - rows.sizes[low])
        fitting = int(np.searchsorted(totals, before + limits.size, side="right"))
        near = low + int(np.searchsorted(ends[low:high], rows.offsets[low] + window, side="right"))
        high = max(min(high, low + limits.rows, fitting, near), low + 1)
        yield low, high
        low = high


class Window:
    """Reads the bytes of one batch after another. Not thread-safe; the bytes of a batch are valid until the next one."""

    def __init__(self, log: SegmentedLog, *, bodies: bool = True) -> None:
        """Create a window; without `bodies`, the body bytes of long records are arbitrary."""
        self._log = log
        self._bodies = bodies
        self._memory = bytearray()

    def read(self, rows: EntryRows) -> tuple[Buffer, Int64s]:
        """Return bytes, and the position of each record of a batch in them; raises `OffsetError` if it was deleted.

        The caller holds the lease of the segment.
        """
        base, size = int(rows.offsets[0]), int(rows.offsets[-1] + rows.sizes[-1] - rows.offsets[0])
        if self._log.is_mapped:
            return self._log.read(base, size), rows.offsets - base
        if not self._bodies and int(rows.sizes.sum()) >= len(rows.sizes) * _LONG_BYTES:
            return self._without_bodies(rows)
        first, stops = _read_ranges(rows)
        starts = rows.offsets[first]
        sizes = stops - starts
        window = self._window(int(sizes.sum()), base)
        befores = np.cumsum(sizes) - sizes
        self._fill(window, starts, befores, sizes)
        moved = np.repeat(befores - starts, np.diff([*first.tolist(), len(rows.offsets)]))
        return window, rows.offsets + moved

    def _window(self, total: int, base: int) -> memoryview:
        # A wrong size in a corrupt entry must not allocate more memory than the size of a segment.
        if total > self._log.segment_bytes:
            raise OffsetError(base + total, base, base + self._log.segment_bytes)
        if len(self._memory) < total:
            # Rounded up, so that it is not reallocated for every slightly larger batch.
            self._memory = bytearray(max(1 << (total - 1).bit_length(), 1 << 20))
        return memoryview(self._memory)[:total]

    def _without_bodies(self, rows: EntryRows) -> tuple[Buffer, Int64s]:
        """Read the bytes before each body, then the bytes after it."""
        starts = np.cumsum(rows.sizes) - rows.sizes
        window = self._window(int(rows.sizes.sum()), int(rows.offsets[0]))
        heads = np.minimum(rows.sizes, _HEAD_BYTES)
        self._fill(window, rows.offsets, starts, heads)
        found = _kernel.tails(window, starts, rows.sizes, _HEAD_BYTES)
        tails, ends = np.frombuffer(found, np.int64), starts + rows.sizes
        self._fill(window, rows.offsets + tails - starts, tails, ends - tails)
        return window, starts

    def _fill(self, window: memoryview, offsets: Int64s, starts: Int64s, sizes: Int64s) -> None:
        ranges = zip(offsets.tolist(), starts.tolist(), sizes.tolist(), strict=True)
        self._log.read_into([(offset, window[at : at + size]) for offset, at, size in ranges])


def _read_ranges(rows: EntryRows) -> tuple[Int64s, Int64s]:
    """Return the first row of each range that is read by one call, and where its bytes end."""
    ends = rows.offsets + rows.sizes
    apart = np.nonzero(rows.offsets[1:] - ends[:-1] > GAP_BYTES)[0] + 1
    first = np.concatenate([[0], apart])
    return first, ends[np.concatenate([apart, [len(ends)]]) - 1]
