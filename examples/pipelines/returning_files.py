"""Two stores joined on their key, and the result written back into a third one, once.

$ python examples/pipelines/returning_files.py examples/data/changes.ndjson.gz returning
"""

import sys
from typing import Any

from pyspark.sql import functions as f

from penstock_spark import local_session

COUNTS = "before bigint, added_before bigint, after bigint, added_after bigint"


def store_year(changes: Any, year: int, store: str) -> None:
    """Write a year's changes into a store, with the file's path as their key."""
    rows = changes.where(f.year("timestamp") == year).select(
        f.col("path").alias("key"),
        f.to_json(f.struct("commit", "added")).alias("value"),
        "timestamp",
    )
    rows.write.format("penstock").mode("append").option("topic", "changes").save(store)


def per_file(spark: Any, store: str, name: str) -> Any:
    """Return how often each file is in a store, and how many lines were added to it."""
    frame = spark.read.format("penstock").schema("key binary, value binary").load(store)
    added = f.get_json_object(f.col("value").cast("string"), "$.added").cast("bigint")
    return frame.groupBy("key").agg(f.count("*").alias(name), f.sum(added).alias(f"added_{name}"))


def write_joined(both: Any, store: str) -> None:
    """Write one message for each file; repeating the same version writes nothing."""
    counts = f.struct("before", "added_before", "after", "added_after")
    rows = both.select("key", f.to_json(counts).alias("value")).write.format("penstock")
    once = rows.option("txnAppId", "returning-files").option("txnVersion", 1)
    once.mode("append").option("topic", "returning").save(store)


def main(source: str, target: str) -> None:
    """Print the files that were changed most in both years."""
    spark = local_session(settings={"spark.sql.shuffle.partitions": "2"})
    changes = spark.read.json(source).withColumn("timestamp", f.timestamp_seconds("time"))
    store_year(changes, 2024, f"{target}/2024")
    store_year(changes, 2025, f"{target}/2025")
    after = per_file(spark, f"{target}/2025", "after")
    both = per_file(spark, f"{target}/2024", "before").join(after, "key")
    write_joined(both, f"{target}/joined")
    write_joined(both, f"{target}/joined")
    found = spark.read.format("penstock").load(f"{target}/joined")
    rows = found.selectExpr("string(key) file", f"from_json(string(value), '{COUNTS}') counts")
    table = rows.select("file", "counts.*")
    table.orderBy(f.desc(f.col("before") + f.col("after")), "file").show(10, truncate=False)
    print(table.count(), "files were changed in both years")


if __name__ == "__main__":
    main(*sys.argv[1:])
