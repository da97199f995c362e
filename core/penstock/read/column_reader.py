"""Reads a log as columns, many messages at a time, through queue entries, and returns the bounds of each queue.

The part of a `Reader` that creates no Python object per message. It reads what is there: the `Reader` first makes
written records readable, and it documents the arguments. Changes nothing on disk.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.contracts import QueueBounds, QueueReader
from penstock.format.arrays import Int64s, np
from penstock.format.java_hash import distinct_of
from penstock.log.segmented_log import SegmentedLog
from penstock.read.filters import RowFilter
from penstock.read.span_merge import Limits, Lost, QueueSpan

if TYPE_CHECKING:
    import pyarrow as pa

# Entries read at each sampled position of a queue.
_SAMPLED = 32
# The maximum size in bytes of the records of a batch, unless the caller gives another one.
BATCH_BYTES_MAX = 64 << 20


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
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the messages of ranges of multiple queues, in log order; see `LowLevelStore.arrow_spans`."""
        from penstock.format import arrow_schema  # noqa: PLC0415 - pyarrow is an extra, and slow to import
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
