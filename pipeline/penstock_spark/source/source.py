"""The Spark data source "penstock": batch reads of stores as Arrow record batches; also creates the stream reader and the writers.

A read is planned once for each `load()`, on the driver; each task opens its stores read-only and reads its share.
`pushFilters` is deliberately not implemented: in PySpark 4.3.0 it gives wrong rows when one load is used twice
with different filters.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock_spark.source.offsets import survey
from penstock_spark.source.options import parse_options
from penstock_spark.source.partition import QueuePartition
from penstock_spark.source.planning import plan
from penstock_spark.source.schema import check_schema, ddl
from penstock_spark.source.task_reader import read_spans
from penstock_spark.stores.locations import find_stores
from penstock_spark.stores.open import open_store

if TYPE_CHECKING:
    import pyarrow as pa


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
        from penstock_spark.source.stream import PenstockStreamReader  # noqa: PLC0415

        return PenstockStreamReader(dict(self.options), fields_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a frame, which writes once for each (txnAppId, txnVersion)."""
        from penstock_spark.sink.writer import make_writer  # noqa: PLC0415

        return make_writer(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return the writer of a stream, which writes each batch exactly once."""
        from penstock_spark.sink.writer import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(dict(self.options), schema, overwrite=overwrite)


class PenstockReader(DataSourceReader):
    """Plans on the driver and reads in tasks. It has no open files, since it is pickled."""

    def __init__(self, options: dict[str, str], fields: Sequence[tuple[str, str]]) -> None:
        self.options = parse_options(options)
        self.names = check_schema(fields)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task."""
        locations = find_stores(self.options.paths)
        requested_ranges = survey(self.options, locations)
        tasks = plan(requested_ranges, locations.stores, self.options.min_partitions)
        return [QueuePartition(spans) for spans in tasks]

    def read(self, partition: Any) -> "Iterator[pa.RecordBatch]":
        """Yield the record batches of one partition."""
        # Spark makes one partition of None out of an empty list.
        if isinstance(partition, QueuePartition):
            yield from read_spans(self.options, self.names, partition.spans)
