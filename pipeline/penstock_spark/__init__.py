"""Penstock on Spark: `spark.read.format("penstock").load(path)`.

Spark finds the format through the package `pyspark_penstock`. If another package of that kind breaks Spark's look-up,
call `register` instead.

In reading order: `errors`, `option_parser` (options as Spark passes them), `durable_names` (new files and folders
that survive a power failure), `java` (a Java and a local session), `arrow` (pyarrow), `columns` (of messages, in Spark's types); then the folders `stores`, `source`,
`sink`, `export`, `jobs`, `verbs`; `cli` (finds the verbs), `plugin` (what Penstock loads).
"""

from typing import TYPE_CHECKING

from penstock_spark.errors import DataLossError
from penstock_spark.java import ensure_java, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataLossError", "ensure_java", "local_session", "register"]


def register(spark: "SparkSession") -> None:
    """Register the format "penstock" with a session."""
    from penstock_spark.source.source import PenstockSource  # noqa: PLC0415 - pyspark is an extra

    spark.dataSource.register(PenstockSource)
