"""Penstock on Spark: `spark.read.format("penstock").load(path)`.

Spark finds the format through the package `pyspark_penstock`. If another package of that kind breaks Spark's look-up,
call `register` instead.

In reading order: `errors`, `option_parser` (options as Spark passes them), `java` (a Java and a local session), `arrow`
(pyarrow, and the columns of messages in Spark's types), `remote_files` (the files of a store at a URL), `stores` (from
paths to stores); then the folders `source` and `sink`; `export_folder` (Parquet files that `jobs.export` and `archive`
write, and `jobs.replay` reads), `archive` (the retention policy), the folder `jobs`; `cli` (the commands), `plugin`
(what Penstock loads).
"""

from typing import TYPE_CHECKING

from penstock_spark.errors import DataLossError, StaleCheckpointError
from penstock_spark.java import ensure_java, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataLossError", "StaleCheckpointError", "ensure_java", "local_session", "register"]


def register(spark: "SparkSession") -> None:
    """Register the format "penstock" with a session."""
    from penstock_spark.source.source import PenstockSource  # noqa: PLC0415 - pyspark is an extra

    spark.dataSource.register(PenstockSource)
