"""Writes lines of JSON into a store, streams them out of it, and writes weekly sums as Parquet.

$ python examples/pipelines/weekly_changes.py examples/data/changes.ndjson.gz weekly
"""

import gzip
import json
import sys
from typing import Any

from pyspark.sql import functions as f

import penstock
from penstock import Message
from penstock_spark import local_session

LINE = "from_json(string(value), 'module string, added int, deleted int') line"


def store_lines(source: str, store: str) -> None:
    """Put each line into one queue, so that its order is kept, with the time of the change as born time."""
    with gzip.open(source, "rb") as lines, penstock.open(store) as opened:
        born = ((line.strip(), json.loads(line)["time"] * 1000) for line in lines)
        opened.put_many(Message("changes", line, born_time_ms=ms) for line, ms in born)


def sum_weeks(spark: Any, store: str, target: str) -> int:
    """Run the stream, 500 messages at a time; a week is written once none of its messages can be late."""
    weeks = (
        spark.readStream.format("penstock")
        .schema("value binary, bornTimestamp timestamp")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger=500)
        .load(store)
        .selectExpr("bornTimestamp", LINE)
        .withWatermark("bornTimestamp", "14 days")
        .groupBy(f.window("bornTimestamp", "7 days").alias("week"), "line.module")
        .agg(
            f.count("*").alias("changes"),
            *(f.sum(f"line.{name}").alias(name) for name in ("added", "deleted")),
            f.expr("count_if(line.added is null) binary"),
        )
    )
    stream = weeks.writeStream.format("parquet").option("checkpointLocation", f"{target}/state")
    query = stream.trigger(availableNow=True).start(f"{target}/weeks")
    query.awaitTermination()
    return sum(each["numInputRows"] for each in query.recentProgress)


def main(source: str, target: str) -> None:
    """Print the number of changes that were read, and the busiest weeks."""
    spark = local_session(settings={"spark.sql.shuffle.partitions": "2"})
    store_lines(source, f"{target}/store")
    print(sum_weeks(spark, f"{target}/store", target), "changes were read")
    weeks = spark.read.parquet(f"{target}/weeks").withColumn("week", f.to_date("week.start"))
    weeks.orderBy(f.desc("changes"), "week", "module").show(10, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
