"""Reads ranges of multiple queues together, in the order of the log, as messages or as columns.

The records of all queues are interleaved in one log: reading queue after queue would read the log once per queue. So
the entries are merged by log offset first, and the log is read once. If the log is not mapped, its bytes are read
into one buffer that is reused for each batch (fresh pages cost more than the copy), so data of a batch must be
copied before the next batch is requested.

Invariants:
    * A batch is within one segment, in ascending order, and no two of its records overlap.
    * The entries of each queue are in queue order; the records they point to have not been checked.

As messages, records are checked and copied out of the log by the kernel, at most a few MiB at a time. A record that is
not valid is read separately, which determines what is wrong with it; the caller decides whether that is an error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock import _kernel
from penstock.contracts import EntryChunk, QueueBounds, QueueReader
from penstock.errors import ArgumentTypeError, CorruptionError, OffsetError
from penstock.format import arguments
from penstock.format.arrays import Bools, Int64s, np
from penstock.format.columns import Buffer
from penstock.format.hashes import distinct_of
from penstock.format.names import check_queue, check_topic
from penstock.format.record import FIXED_SIZE
from penstock.log.record_reader import GAP_BYTES, Entries, QueuePosition, RecordReader
from penstock.log.segmented_log import SegmentedLog
from penstock.message import StoredMessage
from penstock.read.filters import Offsets, Place, RowFilter

if TYPE_CHECKING:
    import pyarrow as pa


# The maximum number of entries in memory, shared among the spans; and the minimum number read at a time.
_ENTRIES_MAX = 65_536
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


# Called with messages that were deleted, and with the log's error, or None if the queue's entries are missing.
Lost = Callable[[QueueSpan, OffsetError | None], None]
# Called with the error of a corrupt record, which is left out unless that raises.
Corrupt = Callable[[CorruptionError], None]
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
    """Raise for records that were deleted from the log; missing queue entries are skipped, as in `read`."""
    if error is not None:
        raise error


def refuse_corrupt(error: CorruptionError) -> None:
    """Raise for a corrupt record."""
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
            if len(present) < len(found.sizes):
                # Not of pre-blank entries, which take the places of records that are known to be gone.
                is_absent = (found.sizes == 0) & (found.log_offsets != -1)
                edges = np.flatnonzero(np.diff(is_absent, prepend=False, append=False))
                for low, high in (start + edges).reshape(-1, 2).tolist():
                    lost(self.span._replace(start=low, stop=high), None)
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
                "`penstock repair PATH --apply` rebuilds the queues from the log; run penstock verify for details",
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
    filled = [part for part in parts if len(part.offsets)]
    if len(filled) <= 1:
        return filled[0] if filled else _nothing()
    columns = [np.concatenate(columns) for columns in zip(*filled, strict=True)]
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
    chunk = max(_ENTRIES_MAX // max(len(spans), 1), _CHUNK_MIN, min(limits.rows, _ENTRIES_MAX))
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
    """Reads the bytes of batch after batch. Not thread-safe; the bytes of a batch are valid until the next one."""

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


def begins_of(
    topics: Sequence[str], queue: int | None, start: Offsets | None, spans: Iterable[QueueSpan]
) -> dict[Place, int]:
    """Return the offset at which each queue begins to be read, also for queues that have no message yet."""
    given = dict(start) if isinstance(start, Mapping) else {}
    if queue is not None and isinstance(start, int):
        given[topics[0], queue] = start
    return {**given, **{span[:2]: span.start for span in spans}}


def checked_spans(call: str, spans: object) -> list[QueueSpan]:
    """Return the ranges of several queues; see `checked_span`."""
    if isinstance(spans, QueueSpan | str) or not isinstance(spans, Iterable):
        raise ArgumentTypeError(call, "spans", spans, "a list of penstock.QueueSpan")
    return [checked_span(call, span) for span in spans]


def checked_span(call: str, span: object) -> QueueSpan:
    """Return the range of a queue; any tuple of topic, queue, start and stop is one."""
    if not isinstance(span, tuple) or len(span) != len(QueueSpan._fields):
        raise ArgumentTypeError(call, "spans", span, "a list of penstock.QueueSpan")
    topic, queue, start, stop = span
    return QueueSpan(
        check_topic(topic),
        check_queue(queue),
        arguments.whole(call, "start", start),
        arguments.whole(call, "stop", stop),
    )


# Entries of one batch at most: the messages of fewer than this, and of a few MiB, are in memory at once.
_ROWS = 4096
_BYTES = 4 << 20


def span_messages(
    log: SegmentedLog,
    index: QueueReader,
    records: RecordReader,
    spans: Sequence[QueueSpan],
    may_match: MayMatch,
    lost: Lost,
    corrupt: Corrupt,
) -> Iterator[StoredMessage]:
    """Yield the messages of ranges of queues in the order of the log.

    Args:
        log: the log.
        index: the queue index.
        records: reads the records of the log.
        spans: the ranges to read.
        may_match: returns which entries may match, given their tag codes; the caller compares the texts.
        lost: called with messages that were deleted; they are skipped unless it raises.
        corrupt: called with the error of a corrupt record; the record is skipped unless it raises.
    """
    places = [QueuePosition.of(span.topic, span.queue) for span in spans]
    for rows in merged(log, index, spans, Limits(_ROWS, _BYTES), may_match, lost):
        at = 0
        while at < len(rows.offsets):
            found = _leading(records, rows.part(at, len(rows.offsets)), places)
            yield from found
            at += len(found)
            if not found:
                message = _one(records, rows, at, spans, lost, corrupt)
                if message is not None:
                    yield message
                at += 1


def _leading(
    records: RecordReader, rows: EntryRows, places: Sequence[QueuePosition]
) -> list[StoredMessage]:
    """Return the messages of the first entries, up to the first that is not valid; possibly none."""
    first = int(rows.spans[0])
    is_one = bool((rows.spans == first).all())
    # The kernel compares the records with one queue; records of several queues are compared here.
    place = places[first] if is_one else QueuePosition(None, 0)
    try:
        found = records.leading(Entries(rows.ordinals, rows.offsets, rows.sizes), place)
    except (OffsetError, CorruptionError):
        return []
    if is_one:
        return found
    wanted = zip(found, rows.spans.tolist(), rows.ordinals.tolist(), strict=False)
    for count, (message, number, ordinal) in enumerate(wanted):
        if not _is_of(message, places[number], ordinal):
            return found[:count]
    return found


def _is_of(message: StoredMessage, place: QueuePosition, ordinal: int) -> bool:
    return place.topic is None or (
        message.queue_offset == ordinal
        and message.queue == place.queue
        and message.topic.encode() == place.topic
    )


def _one(
    records: RecordReader,
    rows: EntryRows,
    at: int,
    spans: Sequence[QueueSpan],
    lost: Lost,
    corrupt: Corrupt,
) -> StoredMessage | None:
    """Return the message of one entry; None if it was deleted or is corrupt, and the callback did not raise."""
    span, ordinal = spans[int(rows.spans[at])], int(rows.ordinals[at])
    place = QueuePosition.of(span.topic, span.queue)
    try:
        return records.message(int(rows.offsets[at]), int(rows.sizes[at]), place, ordinal)
    except OffsetError as error:
        lost(span._replace(start=ordinal, stop=ordinal + 1), error)
    except CorruptionError as error:
        corrupt(error)
    return None


# Entries read at each sampled position of a queue.
_SAMPLED = 32
# The maximum size in bytes of the records of a batch, unless the caller gives another one.
BATCH_BYTES_MAX = 64 << 20


class ColumnReader:
    """Reads by columns, without an object for each message; returns bounds of queues. Safe from any thread.

    It reads what is there: the `Reader` first makes written records readable, and documents the arguments.

    Args:
        log: the commit log.
        queue_index: the queues.
        published: returns the log offset up to which another process has published; None if this one writes the store.
    """

    def __init__(
        self,
        log: SegmentedLog,
        queue_index: QueueReader,
        published: Callable[[], int | None],
    ) -> None:
        self._log = log
        self._queue_index = queue_index
        self._published = published

    def span_batches(
        self,
        spans: Sequence[QueueSpan],
        columns: Sequence[str] | None,
        limits: Limits,
        *,
        verify: bool,
        wanted: RowFilter,
        lost: Lost,
        corrupt: Corrupt = refuse_corrupt,
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the messages of ranges of multiple queues, in log order; see `LowLevelStore.arrow_spans`."""
        from penstock.format import arrow_schema  # noqa: PLC0415 - pyarrow is an extra, and slow to import
        from penstock.read import to_arrow  # noqa: PLC0415 - as above

        names = arrow_schema.check_columns(columns)
        return to_arrow.span_batches(
            self._log, self._queue_index, spans, names, limits,
            verify=verify, wanted=wanted, lost=lost, corrupt=corrupt,
        )  # fmt: skip

    def bounds(self, wanted: Callable[[str], bool], *, published: bool) -> list[QueueBounds]:
        """Return the bounds of every queue, sorted; see `Reader.bounds`."""
        below = self._published() if published else None
        return list(self._queue_index.bounds(wanted, below))

    def sample(
        self, topic: str, queue: int, start: int, stop: int, count: int
    ) -> list[tuple[int, int, float]]:
        """Sample positions of a queue; see `Reader.sample`."""
        found = []
        for at in distinct_of(np.linspace(start, stop - 1, count).astype(np.int64)):
            offsets, sizes, _ = self._queue_index.entries(
                topic, queue, at, min(at + _SAMPLED, stop)
            )
            present: Int64s = np.nonzero(sizes)[0]
            if len(present):
                first = int(present[0])
                found.append((at + first, int(offsets[first]), float(sizes[present].mean())))
        return found
