"""Penstock on Spark: `spark.read.format("penstock").load(path)`.

Spark finds the format by itself, through the package `pyspark_penstock`; `register` does the same where
another package of that kind keeps Spark's look-up from working.
"""

from typing import TYPE_CHECKING

from penstock_spark.java import ensure_java, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ensure_java", "local_session", "register"]


def register(spark: "SparkSession") -> None:
    """Make the format "penstock" known to a session."""
    from penstock_spark.source.source import PenstockSource  # noqa: PLC0415 - pyspark is an extra

    spark.dataSource.register(PenstockSource)
