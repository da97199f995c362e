"""The Spark data source "penstock": batch reads and streams as Arrow record batches; also creates the writers.

A read is planned once for each `load()`, on the driver; each task opens its stores read-only and reads its share. The
readers have no open files, since they are pickled for the tasks. `pushFilters` is deliberately not implemented: in
PySpark 4.3.0 it gives wrong rows when one load is used twice with different filters.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock_spark.arrow import pa
from penstock_spark.source.offsets import survey
from penstock_spark.source.options import parse_options
from penstock_spark.source.stream_state import Follower
from penstock_spark.source.tasks import check_schema, ddl, plan, read_spans
from penstock_spark.stores import StoreSpan, find_stores, open_store


class QueuePartition(InputPartition):
    """The messages that one task reads, of one or several queues, store by store."""

    def __init__(self, spans: list[StoreSpan]) -> None:
        self.spans = spans


def fields_of(schema: StructType) -> list[tuple[str, str]]:
    """Return each column's name, and its type as Spark prints it."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class PenstockSource(DataSource):
    """`spark.read.format("penstock")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "penstock"

    def schema(self) -> str:
        """Return Kafka's columns; a user schema may name fewer, or others that Penstock has.

        Spark calls this at `load()`, so invalid options and paths are refused here, before any plan.
        """
        options = parse_options(self.options, streaming=None)
        locations = find_stores(options.paths)
        for location in locations.stores if locations.is_one else ():
            open_store(location).close()
        return ddl(headers=options.headers)

    def reader(self, schema: StructType) -> "PenstockReader":
        """Return a reader of the columns that `schema` names."""
        return PenstockReader(dict(self.options), fields_of(schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        """Return a reader of a stream."""
        return PenstockStreamReader(dict(self.options), fields_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a frame, which writes once for each (txnAppId, txnVersion)."""
        from penstock_spark.sink.writer import make_writer  # noqa: PLC0415 - readers need no sink

        return make_writer(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return the writer of a stream, which writes each batch exactly once."""
        from penstock_spark.sink.writer import make_stream_writer  # noqa: PLC0415 - as above

        return make_stream_writer(dict(self.options), schema, overwrite=overwrite)


class PenstockReader(DataSourceReader):
    """Plans on the driver and reads in tasks."""

    def __init__(self, options: dict[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self.options = parse_options(options)
        self.names = check_schema(fields)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task."""
        locations = find_stores(self.options.paths)
        requested_ranges = survey(self.options, locations)
        tasks = plan(requested_ranges, locations.stores, self.options.min_partitions)
        return [QueuePartition(spans) for spans in tasks]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one partition."""
        # Spark makes one partition of None out of an empty list.
        if isinstance(partition, QueuePartition):
            yield from read_spans(self.options, self.names, partition.spans)


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of one query; answers Spark's calls by `stream_state`. Not thread-safe.

    One long-lived process on the driver requests offsets. `commit` and `stop` are advisory: nothing depends on them.
    """

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

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one task."""
        # Spark makes one partition of None out of an empty list.
        if isinstance(partition, QueuePartition):
            yield from read_spans(self.options, self.names, partition.spans)

    def commit(self, end: dict[str, Any]) -> None:
        """Record that a batch is committed; see `KeptStart`."""
        self._follower.note_begun(end)
