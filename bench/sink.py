"""The Spark sink's speed: frames of 1 KiB bodies from Parquet into a store, and small triggers.

    python -m bench.sink [--rows 500000] [--folder DIR]

The first run is a warm-up. The best and the median of the later runs are shown. They are compared with the time that
Spark needs to read the same rows and pass them to Python (a writer that counts), and to write them as Parquet again.
"""

import argparse
import importlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from penstock_spark import local_session

BODY_BYTES = 1024


class CountingWriter(DataSourceArrowWriter):
    """Receives rows, and does nothing with them."""

    def write(self, iterator: Any) -> WriterCommitMessage:
        """Count the rows."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class CountingSource(DataSource):
    """The cheapest possible sink."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "penstock-counting"

    def writer(self, schema: Any, overwrite: bool) -> CountingWriter:
        """Return the writer."""
        return CountingWriter()


def timed(job: Callable[[int], object], runs: int) -> list[float]:
    """Return the seconds of each run but the first."""
    found = []
    for run in range(runs + 1):
        began = time.perf_counter()
        job(run)
        found.append(time.perf_counter() - began)
    return found[1:]


def show(name: str, seconds: list[float], rows: int) -> dict[str, object]:
    """Print and return one line."""
    best, middle = min(seconds), statistics.median(seconds)
    gb = rows * BODY_BYTES / 1e9
    print(
        f"{name:34} best {best:6.2f} s  {gb / best:5.2f} GB/s   median {middle:6.2f} s  {gb / middle:5.2f} GB/s"
        f"   load {os.getloadavg()[0]:.1f}", flush=True,
    )  # fmt: skip
    return {"name": name, "best_s": best, "median_s": middle, "best_gb_s": gb / best}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-sink-", dir=given.folder))
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"}
    spark = local_session("sink-bench", "2", settings)
    try:
        found = frames(spark, folder, given.rows, given.runs) + triggers(spark, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def frames(spark: Any, folder: Path, rows: int, runs: int) -> list[dict[str, object]]:
    """Measure whole frames, with and without keys."""
    spark.dataSource.register(CountingSource)
    source = str(folder / "rows")
    made = spark.range(0, rows, 1, 2).selectExpr(
        "concat('key-', id % 100000) AS key",
        f"cast(rpad(concat(md5(cast(id as string)), id), {BODY_BYTES}, md5(cast(id + 1 as string))) as binary) AS "
        "value",
    )
    made.write.option("compression", "none").parquet(source)
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(max(rows * BODY_BYTES // 4, 1 << 20)))
    whole = spark.read.parquet(source)

    def sink(frame: Any, **options: str) -> Callable[[int], object]:
        def job(run: int) -> None:
            root = folder / "store"
            shutil.rmtree(root, ignore_errors=True)
            writer = frame.write.format("penstock").mode("append").option("topic", "t")
            writer.options(**options).save(str(root))

        return job

    def counted(_run: int) -> None:
        whole.write.format("penstock-counting").mode("append").save("x")

    def parquet(run: int) -> None:
        whole.write.option("compression", "none").parquet(str(folder / f"copy-{run}"))

    bodies = whole.select("value")
    return [
        show("to Python and no further", timed(counted, runs), rows),
        show("to Parquet", timed(parquet, runs), rows),
        show("sink, no keys", timed(sink(bodies), runs), rows),
        show("sink, keys", timed(sink(whole), runs), rows),
        show("sink, keys, 2 shards", timed(sink(whole, shards="2"), runs), rows),
        show(
            "sink, keys, 1 GiB segments",
            timed(sink(whole, **{"set.profile": "rocketmq"}), runs),
            rows,
        ),
    ]


def triggers(spark: Any, folder: Path) -> list[dict[str, object]]:
    """Measure a stream of triggers of 100,000 small rows."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "100000").load()
    query = (
        stream.selectExpr("cast(value as string) AS value").writeStream.format("penstock").option("topic", "s")
        .option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "stream"))
    )  # fmt: skip
    while len(query.recentProgress) < 12:
        time.sleep(0.2)
    query.stop()
    seconds = [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress[2:]]
    added = [p["durationMs"]["addBatch"] / 1000 for p in query.recentProgress[2:]]
    print(f"trigger of 100,000 small rows: best {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s "
          f"(tasks and commit {statistics.median(added):.2f} s)")  # fmt: skip
    return [
        {
            "name": "trigger of 100,000 rows",
            "best_s": min(seconds),
            "median_s": statistics.median(seconds),
        }
    ]


if __name__ == "__main__":
    # Imported as the module that workers can import, not as the script.
    importlib.import_module("bench.sink").main()
