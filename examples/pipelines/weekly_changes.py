"""Lines of JSON into a store, a stream out of it, weekly sums of it as Parquet.

$ python examples/pipelines/weekly_changes.py examples/data/changes.ndjson.gz /tmp/weekly
"""

import gzip
import json
import sys
from typing import Any

from pyspark.sql import functions as f

import penstock
from penstock import Message
from penstock_spark import local_session

LINE = "time bigint, commit string, module string, path string, added int, deleted int"


def store_lines(source: str, store: str) -> None:
    """Put each line into one queue, so that its order is kept; born when the change was made."""
    with gzip.open(source, "rb") as lines, penstock.open(store) as opened:
        times = ((line.strip(), json.loads(line)["time"] * 1000) for line in lines)
        opened.put_many(Message("changes", line, born_time_ms=time) for line, time in times)


def start(spark: Any, store: str, target: str) -> Any:
    """Start what reads 500 messages at a time; a week is written once none of it can be late."""
    lines = spark.readStream.format("penstock").schema("value binary, bornTimestamp timestamp")
    lines = lines.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 500)
    weeks = (
        lines.load(store)
        .withColumn("line", f.from_json(f.col("value").cast("string"), LINE))
        .withWatermark("bornTimestamp", "14 days")
        .groupBy(f.window("bornTimestamp", "7 days").start.alias("week"), "line.module")
        .agg(
            f.count("*").alias("changes"),
            f.sum("line.added").alias("added"),
            f.sum("line.deleted").alias("deleted"),
            f.count_if("line.added is null").alias("binary"),
        )
    )
    stream = weeks.writeStream.format("parquet").option("checkpointLocation", f"{target}/state")
    return stream.trigger(availableNow=True).start(f"{target}/weeks")


def main(source: str, target: str) -> None:
    """Print how the stream went, and the busiest weeks."""
    spark = local_session(settings={"spark.sql.shuffle.partitions": "2"})
    store_lines(source, f"{target}/store")
    query = start(spark, f"{target}/store", target)
    query.awaitTermination()
    print("rows of each trigger:", *(each["numInputRows"] for each in query.recentProgress))
    weeks = spark.read.parquet(f"{target}/weeks")
    weeks.orderBy(f.desc("changes"), "week", "module").show(10, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
