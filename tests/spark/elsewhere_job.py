"""What is run on each other Spark: the source, the sink and a job; prints one line of JSON.

A script, not a test: its Penstock is the one that was shipped, on the driver as in the tasks.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any


def session(shipped: str) -> Any:
    """Return the session of the cluster that this was submitted to, or a local one of Spark Connect."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    if "--connect" not in sys.argv:
        return SparkSession.builder.getOrCreate()
    sys.path.insert(0, shipped)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    spark.addArtifacts(shipped, pyfile=True)
    return spark


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


def main() -> None:
    shipped, source, _target = sys.argv[1:4]
    spark = session(shipped)
    import penstock_spark  # noqa: PLC0415 - on the path only now

    penstock_spark.register(spark)
    frame = spark.read.format("penstock").load(source)
    report = {
        "driver": penstock_spark.__file__,
        "rows": frame.count(),
        "topics": sorted(row.topic for row in frame.select("topic").distinct().collect()),
        **seen_by_tasks(spark),
    }
    spark.stop()
    print(json.dumps(report))


main()
