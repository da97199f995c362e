"""Penstock on Spark: `spark.read.format("penstock").load(path)`.

Spark finds the format by itself, through the package `pyspark_penstock`; `register` does the same where
another package of that kind keeps Spark's look-up from working.

In reading order: `errors`, `option_parser` (options as Spark hands them over), `durable_names` (new files and folders that outlive a
power cut), `java` (a Java and a local session), `columns` (of messages, in Spark's types); then the folders `stores`, `source`,
`sink`, `export`, `jobs`, `verbs`; `cli` (finds the verbs), `plugin` (what Penstock loads). `reading` is an old path of an error.
"""

from typing import TYPE_CHECKING

from penstock_spark.errors import DataLossError
from penstock_spark.java import ensure_java, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataLossError", "ensure_java", "local_session", "register"]


def register(spark: "SparkSession") -> None:
    """Make the format "penstock" known to a session."""
    from penstock_spark.source.source import PenstockSource  # noqa: PLC0415 - pyspark is an extra

    spark.dataSource.register(PenstockSource)
