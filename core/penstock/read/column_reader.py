"""Reading a store as columns, many messages at a time; and what there is to read of each queue.

The half of a reader that has no Python object for a message; see `reader`. Changes nothing on disk.
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

# What is made of so many rows stays in the cache of a core.
_TABLE_ROWS = 2048
# Entries read at each place where a queue is looked at.
_SAMPLED = 32


# Of the only queue, or by topic and queue.
Offsets = int | Mapping[tuple[str, int], int]


def _by_queue(
    name: str, offsets: Offsets | None, topics: set[str], queues: Sequence[QueueBounds]
) -> Mapping[tuple[str, int], int]:
    """Return queue offsets by topic and queue; refuse one that could mean several queues, or none that is asked for."""
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
    """Reads by columns. Safe from any thread; made by `Reader`, which says what is open."""

    _log: SegmentedLog
    _queue_index: QueueIndex
    _published: Callable[[], int | None]

    def _settle(self) -> None:
        """Make what this process has written findable."""
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
        """Return messages [start, stop) of a queue as an Arrow table, without a Python object a row.

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

        It reads as it is asked for batches, passes through the log once, and ends with what there is to read now. Whatever takes
        an Arrow stream can read it: `pyarrow`, DuckDB, Polars, pandas. The store must stay open meanwhile. Errors are raised
        where a batch is asked for, as Penstock's.

        Args:
            topics: one topic or more; all their queues are read. One that is not there has no messages.
            columns: see `penstock.format.arrow_schema.COLUMNS`.
            start: the queue offset to begin at, where the topics have one queue; else a mapping of (topic, queue) to
                one. Queues that it does not name are read from their first message on.
            stop: the queue offset before which to end, in the same way.
            tags: only messages with one of these tags; all if there are none.
            rows: a batch has so many rows at most.
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
        """Yield batches; raise once the store is closed."""
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
        """Return what `to_arrow` does, as record batches of at most `rows` rows, one at a time."""
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
        """Return the messages of stretches of several queues, in the order in which they were stored.

        The log is passed through once, however many queues lie mixed in it.

        Args:
            spans: stretches [start, stop) of queues, as `bounds` tells them.
            columns: see `penstock.format.arrow_schema.COLUMNS`.
            rows: a batch has so many rows at most.
            size: and so many bytes of records, but always one record.
            verify: check every record's CRC; a damaged one is an error either way.
            tags: only messages with one of these tags; all if there are none.
            keys: only messages with one of these keys; all if there are none.
            lost: called with messages that retention took away meanwhile, and with the error, or None where
                only the queue's file is gone; what it does not raise for is passed over.
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
        """Return what there is to read of every queue, in one pass; sorted by topic and queue.

        Args:
            wanted: says of a topic whether it is asked for.
            published: of a store that another process writes, only up to where it says that everything is
                in its place; what lies behind may be cut off by a crash of that process.
        """
        self._settle()
        below = self._published() if published else None
        return list(self._queue_index.bounds(wanted, below))

    def sample(
        self, topic: str, queue: int, start: int, stop: int, count: int
    ) -> list[tuple[int, int, float]]:
        """Look at `count` places of a queue: returns ordinals, log offsets, and the mean record size there."""
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
