"""Reads a log as columns, many messages at a time, through queue entries, and returns the bounds of each queue.

The part of a `Reader` that creates no Python object per message. It reads what is there: the `Reader` first makes
written records readable, and it documents the arguments. Changes nothing on disk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.contracts import QueueBounds, QueueIndex
from penstock.errors import ArgumentError
from penstock.format.arrays import Int64s, np
from penstock.format.java_hash import distinct_of
from penstock.format.names import check_queue, check_topic
from penstock.log.segmented_log import SegmentedLog
from penstock.read.filters import RowFilter
from penstock.read.span_merge import Limits, Lost, QueueSpan, refuse_lost

if TYPE_CHECKING:
    import pyarrow as pa

# The columns of this many rows fit into the cache of a core.
_TABLE_ROWS = 2048
# Entries read at each sampled position of a queue.
_SAMPLED = 32
# The maximum size in bytes of the records of a batch, unless the caller gives another one.
BATCH_BYTES_MAX = 64 << 20


# The offset of the only queue, or a mapping by topic and queue.
Offsets = int | Mapping[tuple[str, int], int]


def _by_queue(
    name: str, offsets: Offsets | None, topics: set[str], queues: Sequence[QueueBounds]
) -> Mapping[tuple[str, int], int]:
    """Return queue offsets by topic and queue; raises `ArgumentError` if one is ambiguous or of a queue that is not read."""
    if offsets is None:
        return {}
    if isinstance(offsets, Mapping):
        for topic, queue in offsets:
            if topic not in topics:
                expected = f"of the topics that are read, and {topic!r} is not one of them"
                raise ArgumentError("to_reader", f"{name} key", (topic, queue), expected)
        return offsets
    if len(queues) > 1:
        expected = f"a mapping of (topic, queue) to offset, since it could mean any of {len(queues)} queues"
        raise ArgumentError("to_reader", name, offsets, expected)
    return {b[:2]: offsets for b in queues}


class ColumnReader:
    """Reads by columns. Safe from any thread.

    Args:
        log: the commit log.
        queue_index: the queues.
        published: returns the log offset up to which a writer in another process has published; None if this process
            writes the store.
    """

    def __init__(
        self,
        log: SegmentedLog,
        queue_index: QueueIndex,
        published: Callable[[], int | None],
    ) -> None:
        self._log = log
        self._queue_index = queue_index
        self._published = published

    def table(
        self,
        topic: str,
        queue: int,
        start: int | None,
        stop: int | None,
        columns: Sequence[str] | None,
        *,
        verify: bool,
    ) -> "pa.Table":
        """Return messages [start, stop) of a queue; see `Reader.to_arrow`."""
        from penstock.format import arrow_schema  # noqa: PLC0415 - pyarrow is an extra, and slow to import

        batches = self.queue_batches(
            topic, queue, start, stop, columns, rows=_TABLE_ROWS, verify=verify
        )
        return arrow_schema.reader_of(batches, columns).read_all()

    def stream(
        self,
        topics: str | Iterable[str],
        columns: Sequence[str] | None,
        *,
        start: Offsets | None,
        stop: Offsets | None,
        tags: str | Iterable[str],
        rows: int,
        verify: bool,
        check_open: Callable[[], None],
    ) -> "pa.RecordBatchReader":
        """Return all messages of some topics as a stream; see `Reader.to_reader`.

        `check_open` is called before and after each batch; it raises once the store is closed.
        """
        from penstock.format import arrow_schema  # noqa: PLC0415 - as in `table`

        names = {check_topic(t) for t in ([topics] if isinstance(topics, str) else topics)}
        found = self.bounds(names.__contains__, published=True)
        firsts, stops = (
            _by_queue("start", start, names, found),
            _by_queue("stop", stop, names, found),
        )
        spans = [
            QueueSpan(
                b.topic, b.queue, max(firsts.get(b[:2], b.min_offset), b.min_offset),
                min(stops.get(b[:2], b.max_offset), b.max_offset),
            )
            for b in found
        ]  # fmt: skip
        wanted = RowFilter([tags] if isinstance(tags, str) else tags)
        batches = self.span_batches(
            spans,
            columns,
            Limits(rows, BATCH_BYTES_MAX),
            verify=verify,
            wanted=wanted,
            lost=refuse_lost,
        )
        return arrow_schema.reader_of(_while_open(batches, check_open), columns)

    def queue_batches(
        self,
        topic: str,
        queue: int,
        start: int | None,
        stop: int | None,
        columns: Sequence[str] | None,
        *,
        rows: int,
        verify: bool,
    ) -> "Iterator[pa.RecordBatch]":
        """Yield messages [start, stop) of a queue; see `Reader.arrow_batches`."""
        low = self._queue_index.min_offset(check_topic(topic), check_queue(queue))
        high = self._queue_index.max_offset(topic, queue)
        first = low if start is None else max(start, low)
        last = high if stop is None else min(stop, high)
        span = QueueSpan(topic, queue, first, last)
        return self.span_batches(
            [span], columns, Limits(rows, BATCH_BYTES_MAX),
            verify=verify, wanted=RowFilter(), lost=refuse_lost,
        )  # fmt: skip

    def span_batches(
        self,
        spans: Sequence[QueueSpan],
        columns: Sequence[str] | None,
        limits: Limits,
        *,
        verify: bool,
        wanted: RowFilter,
        lost: Lost,
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the messages of ranges of multiple queues, in log order; see `Reader.arrow_spans`."""
        from penstock.format import arrow_schema  # noqa: PLC0415 - as in `table`
        from penstock.read import to_arrow  # noqa: PLC0415 - as above

        names = arrow_schema.check_columns(columns)
        return to_arrow.span_batches(
            self._log, self._queue_index, spans, names, limits,
            verify=verify, wanted=wanted, lost=lost,
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


def _while_open(
    batches: "Iterator[pa.RecordBatch]", check_open: Callable[[], None]
) -> "Iterator[pa.RecordBatch]":
    """Yield batches; raises once the store is closed."""
    check_open()
    for batch in batches:
        yield batch
        check_open()
