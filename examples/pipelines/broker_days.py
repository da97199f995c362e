"""A broker's directory, read in place, as a table of days. No broker runs, and nothing is written.

$ python examples/pipelines/broker_days.py store
"""

import sys
from typing import Any

from pyspark.sql import functions as f

from penstock_spark import local_session

# Only the columns named here are read.
COLUMNS = "topic string, tags string, bornTimestamp timestamp, value binary"


def days(spark: Any, broker: str) -> Any:
    """Return what was sent each day: messages and bytes of each topic, number of tags, first and last time."""
    return (
        spark.read.format("penstock")
        .schema(COLUMNS)
        .load(broker)
        .groupBy(f.to_date("bornTimestamp").alias("day"), "topic")
        .agg(
            f.count("*").alias("messages"),
            f.sum(f.length("value")).alias("bytes"),
            f.size(f.collect_set("tags")).alias("tags"),
            f.min("bornTimestamp").alias("first"),
            f.max("bornTimestamp").alias("last"),
        )
    )


def main(broker: str) -> None:
    """Print the last days."""
    days(local_session(), broker).orderBy(f.desc("day"), "topic").show(12, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
