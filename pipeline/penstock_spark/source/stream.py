"""The streaming half of the data source: answers Spark's calls by `stream_state`.

One long-lived process on the driver requests offsets; tasks in other processes read. `commit` and `stop` are advisory in
PySpark, and nothing depends on them. The reader has no open files, since it is pickled for the tasks.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock_spark.source.options import parse_options
from penstock_spark.source.partition import QueuePartition
from penstock_spark.source.schema import check_schema
from penstock_spark.source.stream_state import Follower
from penstock_spark.source.task_reader import read_spans

if TYPE_CHECKING:
    import pyarrow as pa


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of one query. Not thread-safe."""

    def __init__(self, options: dict[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self.options = parse_options(options, streaming=True)
        self.names = check_schema(fields)
        self._follower = Follower(self.options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the query starts."""
        return self._follower.start()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the options set."""
        if self.options.rows_per_trigger:
            return ReadMaxRows(self.options.rows_per_trigger)
        if self.options.bytes_per_trigger:
            return ReadMaxBytes(self.options.bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next batch ends."""
        if isinstance(limit, ReadMaxRows):
            size = self.options.bytes_per_trigger
            return self._follower.latest(start, rows=limit.max_rows, size=size)
        if isinstance(limit, ReadMaxBytes):
            return self._follower.latest(start, size=limit.max_bytes)
        return self._follower.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the query's end at the current ends of the queues."""
        self._follower.fix_target()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the latest offsets, for the query's progress."""
        return self._follower.newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one batch."""
        return [QueuePartition(spans) for spans in self._follower.tasks(start, end)]

    def read(self, partition: Any) -> "Iterator[pa.RecordBatch]":
        """Yield the record batches of one task."""
        # Spark makes one partition of None out of an empty list.
        if isinstance(partition, QueuePartition):
            yield from read_spans(self.options, self.names, partition.spans)

    def commit(self, end: dict[str, Any]) -> None:
        """Record that a batch is committed; see `start_offsets`."""
        self._follower.note_begun(end)
