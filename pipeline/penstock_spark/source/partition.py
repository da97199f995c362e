"""The object that Spark sends to one task."""

from pyspark.sql.datasource import InputPartition

from penstock_spark.source.planning import StoreSpan


class QueuePartition(InputPartition):
    """The messages that one task reads, of one or several queues, store by store."""

    def __init__(self, spans: list[StoreSpan]) -> None:
        self.spans = spans
