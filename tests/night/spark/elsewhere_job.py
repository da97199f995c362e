"""What is run on each other Spark: the source, the sink, a stream and a job; prints one line of JSON.

A script, not a test: its Penstock is the one of the wheel, on the driver as in the tasks.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from penstock_spark.jobs import verify


def session() -> Any:
    """Return the session of the cluster that this was submitted to, or a local one of Spark Connect."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    if "--connect" not in sys.argv:
        return SparkSession.builder.getOrCreate()
    return SparkSession.builder.remote("local[2]").getOrCreate()


def seen_by_tasks(spark: Any) -> dict[str, list[str]]:
    """Return which processes ran tasks, with which interpreters, and where they found our code."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - in the task

        import penstock  # noqa: PLC0415 - in the task

        for _ in batches:
            row = {"parent": str(os.getppid()), "python": sys.executable, "code": penstock.__file__}
            yield pa.RecordBatch.from_pylist([row])

    rows = (
        spark.range(8)
        .repartition(8)
        .mapInArrow(look, "parent string, python string, code string")
        .collect()
    )
    return {name: sorted({row[name] for row in rows}) for name in ("parent", "python", "code")}


def write_twice(frame: Any, target: str) -> None:
    """Write a frame through the sink, and again as the same version, which must change nothing."""
    rows = frame.select("key", "value", "topic", "partition")
    for _ in range(2):
        once = rows.write.format("penstock").option("txnAppId", "job").option("txnVersion", 1)
        once.mode("append").save(target)


def stream(spark: Any, source: str, target: str, checkpoint: str) -> None:
    """Stream one store into another."""
    rows = spark.readStream.format("penstock").option("startingOffsets", "earliest").load(source)
    sink = rows.select("key", "value", "topic", "partition").writeStream.format("penstock")
    sink = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    sink.start(target).awaitTermination()


def main() -> None:
    source, target = sys.argv[1:3]
    spark = session()
    frame = spark.read.format("penstock").load(source)
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    write_twice(frame, f"{target}/written")
    stores = [source, f"{target}/written"]
    if "--stream" in sys.argv:
        stores.append(f"{target}/streamed")
        stream(spark, source, stores[-1], f"{target}/checkpoint")
    checked = verify.run(spark, stores)
    report = {
        "counts": counts,
        "stores": checked.stores,
        "records": checked.records,
        "findings": checked.rows(),
        **seen_by_tasks(spark),
    }
    spark.stop()
    print(json.dumps(report))


main()
