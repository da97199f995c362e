"""Reads a store as columns, many messages at a time, and returns the bounds of each queue.

The half of a reader that creates no Python object per message; see `reader`. Changes nothing on disk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.contracts import QueueBounds, QueueIndex
from penstock.format.java_hash import Int64s, distinct_of
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


# The offset of the only queue, or a mapping by topic and queue.
Offsets = int | Mapping[tuple[str, int], int]


def _by_queue(
    name: str, offsets: Offsets | None, topics: set[str], queues: Sequence[QueueBounds]
) -> Mapping[tuple[str, int], int]:
    """Return queue offsets by topic and queue; raises `ValueError` if one is ambiguous or of a queue that is not read."""
    if offsets is None:
        return {}
    if isinstance(offsets, Mapping):
        for topic, queue in offsets:
            if topic not in topics:
                raise ValueError(f"{name} names queue {queue} of {topic!r}, which is not read here")
        return offsets
    if len(queues) > 1:
        raise ValueError(
            f"{name}={offsets} could mean any of {len(queues)} queues: give a mapping of (topic, queue) to offset"
        )
    return {b[:2]: offsets for b in queues}


class ColumnReader:
    """Reads by columns; the base class of `Reader`. Safe from any thread."""

    _log: SegmentedLog
    _queue_index: QueueIndex
    _published: Callable[[], int | None]

    def _settle(self) -> None:
        """Make the records written by this process readable through queues and index."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raise if the store is closed."""
        raise NotImplementedError

    def to_arrow(
        self,
        topic: str,
        queue: int = 0,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
    ) -> "pa.Table":
        """Return messages [start, stop) of a queue as an Arrow table, without a Python object per row.

        See `penstock.format.arrow_schema.COLUMNS` for the names; `verify` checks every record's CRC.
        """
        from penstock.format import arrow_schema  # noqa: PLC0415 - pyarrow is an extra, and slow to import

        batches = self.arrow_batches(
            topic, queue, start, stop, columns, rows=_TABLE_ROWS, verify=verify
        )
        return arrow_schema.reader_of(batches, columns).read_all()

    def to_reader(
        self,
        topics: str | Iterable[str],
        columns: Sequence[str] | None = None,
        *,
        start: Offsets | None = None,
        stop: Offsets | None = None,
        tags: str | Iterable[str] = (),
        rows: int = 65_536,
        verify: bool = True,
    ) -> "pa.RecordBatchReader":
        """Return all messages of some topics as a stream of Arrow record batches, in the order in which they were stored.

        The stream reads each batch on request, reads the log once, and ends with the last message that is present at the
        call. Any consumer of Arrow streams can read it: `pyarrow`, DuckDB, Polars, pandas. The store must stay open until
        the end. A request for a batch may raise Penstock's errors.

        Args:
            topics: one topic or more; all their queues are read. A topic that does not exist has no messages.
            columns: see `penstock.format.arrow_schema.COLUMNS`.
            start: the queue offset to begin at if the topics have one queue; otherwise a mapping of (topic, queue) to
                offset. Queues that are not in the mapping are read from their first message on.
            stop: the queue offset before which to end, in the same form.
            tags: only messages with one of these tags; all messages if empty.
            rows: maximum number of rows in a batch.
            verify: check every record's CRC; a corrupt one is an error either way.
        """
        from penstock.format import arrow_schema  # noqa: PLC0415 - as in `to_arrow`

        names = {check_topic(t) for t in ([topics] if isinstance(topics, str) else topics)}
        found = self.bounds(names.__contains__)
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
        wanted = [tags] if isinstance(tags, str) else tags
        batches = self.arrow_spans(spans, columns, rows=rows, verify=verify, tags=wanted)
        return arrow_schema.reader_of(self._while_open(batches), columns)

    def _while_open(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Yield batches; raises once the store is closed."""
        self._check_open()
        for batch in batches:
            yield batch
            self._check_open()

    def arrow_batches(
        self,
        topic: str,
        queue: int = 0,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        rows: int = 65_536,
        verify: bool = True,
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the messages that `to_arrow` returns, as record batches of at most `rows` rows."""
        self._settle()
        low = self._queue_index.min_offset(check_topic(topic), check_queue(queue))
        high = self._queue_index.max_offset(topic, queue)
        first = low if start is None else max(start, low)
        last = high if stop is None else min(stop, high)
        span = QueueSpan(topic, queue, first, last)
        return self.arrow_spans([span], columns, rows=rows, verify=verify)

    def arrow_spans(
        self,
        spans: Sequence[QueueSpan],
        columns: Sequence[str] | None = None,
        *,
        rows: int = 65_536,
        size: int = 64 << 20,
        verify: bool = True,
        tags: Iterable[str] = (),
        keys: Iterable[str] = (),
        lost: Lost = refuse_lost,
    ) -> "Iterator[pa.RecordBatch]":
        """Return the messages of ranges of multiple queues, in the order in which they were stored.

        Reads the log once, however many queues are interleaved in it.

        Args:
            spans: ranges [start, stop) of queues, as returned by `bounds`.
            columns: see `penstock.format.arrow_schema.COLUMNS`.
            rows: maximum number of rows in a batch.
            size: maximum size in bytes of the records of a batch; a batch always has at least one record.
            verify: check every record's CRC; a corrupt record is an error either way.
            tags: only messages with one of these tags; all messages if empty.
            keys: only messages with one of these keys; all messages if empty.
            lost: called with messages that retention deleted meanwhile, and with the error, or None if only the
                queue's file is missing; the messages are skipped unless it raises.
        """
        from penstock.format import arrow_schema  # noqa: PLC0415 - as in `to_arrow`
        from penstock.read import to_arrow  # noqa: PLC0415 - as above

        self._settle()
        return to_arrow.span_batches(
            self._log, self._queue_index, spans, arrow_schema.check_columns(columns), Limits(rows, size),
            verify=verify, wanted=RowFilter(tags, keys), lost=lost,
        )  # fmt: skip

    def bounds(
        self, wanted: Callable[[str], bool] = lambda _: True, *, published: bool = True
    ) -> list[QueueBounds]:
        """Return the bounds of every queue, in one pass, sorted by topic and queue.

        Args:
            wanted: returns whether a topic is included.
            published: if another process writes the store, return only messages that it has published; a crash of
                that process may cut off the messages after them.
        """
        self._settle()
        below = self._published() if published else None
        return list(self._queue_index.bounds(wanted, below))

    def sample(
        self, topic: str, queue: int, start: int, stop: int, count: int
    ) -> list[tuple[int, int, float]]:
        """Sample `count` positions of a queue; returns ordinals, log offsets, and the mean record size at each."""
        self._settle()
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
