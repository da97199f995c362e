"""The Spark data source "penstock": batch reads of a store's queues as Arrow record batches.

Planned once at `load()` on the driver; each task opens the store read-only and reads its queue range.
`pushFilters` is left out on purpose: in PySpark 4.3.0 it gives wrong rows when one load is used twice
with different filters.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import penstock
from penstock_spark.options import parse_options
from penstock_spark.ranges import QueueRange, plan
from penstock_spark.schema import DDL, check_names, converter, store_columns

if TYPE_CHECKING:
    import pyarrow as pa


class QueuePartition(InputPartition):
    """One task's share: messages of one or several queues."""

    def __init__(self, ranges: list[QueueRange]) -> None:
        self.ranges = ranges


class PenstockSource(DataSource):
    """`spark.read.format("penstock")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "penstock"

    def schema(self) -> str:
        """Return Kafka's columns; a user schema may name fewer, or others of ours."""
        return DDL

    def reader(self, schema: StructType) -> "PenstockReader":
        """Return a reader of the columns that `schema` names."""
        return PenstockReader(dict(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        """Return a reader of a stream."""
        from penstock_spark.stream import PenstockStreamReader  # noqa: PLC0415

        return PenstockStreamReader(dict(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return what writes a frame, once for each (txnAppId, txnVersion)."""
        from penstock_spark.sink.writer import make_writer  # noqa: PLC0415

        return make_writer(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return what writes a stream, each batch exactly once."""
        from penstock_spark.sink.writer import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(dict(self.options), schema, overwrite=overwrite)


class PenstockReader(DataSourceReader):
    """Plans on the driver, reads in tasks. Holds nothing that is open: it is pickled."""

    def __init__(self, options: dict[str, str], names: list[str]) -> None:
        self.options = parse_options(options)
        self.names = check_names(names)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each share of a queue."""
        with penstock.open(self.options.path, read_only=True) as store:
            return [QueuePartition(ranges) for ranges in plan(store, self.options)]

    def read(self, partition: Any) -> "Iterator[pa.RecordBatch]":
        """Yield the record batches of one partition."""
        # Spark makes one partition of None out of an empty list.
        if not isinstance(partition, QueuePartition):
            return
        convert, needed = converter(self.names), store_columns(self.names)
        with penstock.open(self.options.path, read_only=True) as store:
            for each in partition.ranges:
                for batch in store.arrow_batches(
                    each.topic, each.queue, each.start, each.stop, needed,
                    rows=self.options.rows_per_batch, verify=self.options.verify,
                ):  # fmt: skip
                    yield convert(batch)
