"""`python -m bench.spark`: measures the pipeline on this machine, compared with Spark's own Parquet, in one run.

Bodies of 1 KiB, warm, on two cores; jobs take turns in each round, so anything that slows the machine slows all of
them. Shown are medians with their spread, the goal of each, and which are missed; `--json FILE` writes the figures,
`--mib N` and `--rounds N` make it shorter. MB/s and GB/s count bodies only, in powers of ten.
"""

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyspark

import penstock
from bench import machine
from penstock_spark import local_session

BODY = 1024
BATCH = 20_000
QUEUES = 8
CORES = 2
THREE = "topic string, partition int, offset bigint"
TRIGGER_ROWS = 100_000
STORES, STORE_QUEUES = 1000, 100
# The thousand stores are small.
SMALL: dict[str, Any] = {
    "geometry.segment_bytes": 64 * 1024,
    "geometry.queue_entries": 20,
    "geometry.index_slots": 100,
    "geometry.index_entries": 400,
}


@attrs.frozen
class Goal:
    """The target of a figure, as text, and whether the medians reach it."""

    words: str
    met: Callable[[dict[str, float]], bool]


# In display order; a figure without a goal is for comparison.
GOALS: dict[str, Goal | None] = {
    "source, all columns, MB/s": Goal(
        ">= 900, or >= 0.55 of parquet",
        lambda m: (
            m["source, all columns, MB/s"]
            >= min(900, 0.55 * m["parquet scan of the same rows, MB/s"])
        ),
    ),
    "parquet scan of the same rows, MB/s": None,
    "source, three columns, M rows/s": Goal(
        ">= 1.4", lambda m: m["source, three columns, M rows/s"] >= 1.4
    ),
    "verify job, MB/s": Goal(
        ">= 0.8 of plain", lambda m: m["verify job, MB/s"] >= 0.8 * m["verify plain, MB/s"]
    ),
    "verify plain, MB/s": None,
    "sink, GB/s": Goal(">= 0.4", lambda m: m["sink, GB/s"] >= 0.4),
    "parquet write of the same rows, GB/s": None,
    "planning 1,000 stores x 100 queues, s": Goal(
        "< 10", lambda m: m["planning 1,000 stores x 100 queues, s"] < 10
    ),
    "trigger of 100,000 rows, s": Goal("< 1", lambda m: m["trigger of 100,000 rows, s"] < 1),
}
RATIOS = {
    "source / parquet": (
        "source, all columns, MB/s",
        "parquet scan of the same rows, MB/s",
    ),
    "verify job / plain": ("verify job, MB/s", "verify plain, MB/s"),
    "sink / parquet write": ("sink, GB/s", "parquet write of the same rows, GB/s"),
}


def fill(root: Path, mib: int) -> int:
    """Create a store with this number of MiB of incompressible bodies; return the number of messages."""
    chance = np.random.default_rng(1)
    count = mib * 1024 * 1024 // BODY
    with penstock.open(root, environ={}) as store:
        for start in range(0, count, BATCH):
            rows = min(BATCH, count - start)
            raw = pa.py_buffer(chance.bytes(rows * BODY))
            offsets = pa.py_buffer(np.arange(0, (rows + 1) * BODY, BODY, dtype=np.int32))
            store.put_arrow(
                pa.table(
                    {
                        "topic": pa.array(["bench"] * rows),
                        "body": pa.Array.from_buffers(pa.binary(), rows, [None, offsets, raw]),
                        "queue": pa.array(np.arange(rows) // -(-rows // QUEUES)),
                        "keys": pa.array([f"key-{start + n}" for n in range(rows)]),
                    }
                )
            )
    return count


def fill_many(root: Path) -> None:
    """Create a thousand stores of a hundred queues: one, and links to its files."""
    first = root / "store-000"
    with penstock.open(first, environ={}, **SMALL) as store:
        store.put_many(penstock.Message("bench", b"x", queue=q) for q in range(STORE_QUEUES))
    for number in range(1, STORES):
        shutil.copytree(first, root / f"store-{number:03d}", copy_function=_link)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def noop(frame: Any) -> None:
    """Read every row and column of a frame, and do nothing with them."""
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """The jobs, over one store, one Parquet folder with the same rows, and a thousand small stores."""

    def __init__(self, spark: Any, root: Path, mib: int) -> None:
        self.spark = spark
        self.root = root
        self.store = root / "store"
        self.parquet = root / "parquet"
        self.many = root / "many"
        self.count = fill(self.store, mib)
        fill_many(self.many)
        self.read().write.option("compression", "none").parquet(str(self.parquet))
        self.turn = 0

    def jobs(self) -> dict[str, Callable[[], float]]:
        """Return each figure's job, which runs once and returns the figure."""
        return {
            "source, all columns, MB/s": lambda: self.mb(lambda: noop(self.read())),
            "parquet scan of the same rows, MB/s": lambda: self.mb(
                lambda: noop(self.read_parquet())
            ),
            "source, three columns, M rows/s": lambda: (
                self.count / 1e6 / seconds(lambda: noop(self.read(THREE)))
            ),
            "verify job, MB/s": lambda: self.mb(self.verify_job),
            "verify plain, MB/s": lambda: self.mb(self.verify_plain),
            "sink, GB/s": lambda: self.mb(self.sink) / 1000,
            "parquet write of the same rows, GB/s": lambda: self.mb(self.parquet_write) / 1000,
            "planning 1,000 stores x 100 queues, s": lambda: seconds(self.plan),
            "trigger of 100,000 rows, s": self.trigger,
        }

    def mb(self, job: Callable[[], None]) -> float:
        """Run a job over all bodies; returns MB/s."""
        return self.count * BODY / 1e6 / seconds(job)

    def read(self, schema: str | None = None) -> Any:
        """Return the store's frame."""
        reader = self.spark.read.format("penstock")
        return (reader.schema(schema) if schema else reader).load(str(self.store))

    def read_parquet(self) -> Any:
        """Return the Parquet folder's frame."""
        return self.spark.read.parquet(str(self.parquet))

    def verify_job(self) -> None:
        """Check every record, the queues and the index on Spark."""
        from penstock_spark.jobs import verify  # noqa: PLC0415

        report = verify.run(self.spark, [str(self.store)])
        assert not report.findings, report

    def verify_plain(self) -> None:
        """Check the same in plain processes."""
        with penstock.open(self.store, read_only=True) as store:
            findings = list(store.verify(jobs=CORES))
        assert not findings, findings

    def fresh(self) -> str:
        """Return a folder that does not exist yet; the previous one is removed."""
        shutil.rmtree(self.root / f"out-{self.turn}", ignore_errors=True)
        self.turn += 1
        return str(self.root / f"out-{self.turn}")

    def sink(self) -> None:
        """Write the rows of the Parquet folder into a new store."""
        rows = self.read_parquet().select("key", "value", "topic", "partition")
        rows.write.format("penstock").mode("append").save(self.fresh())

    def parquet_write(self) -> None:
        """Write the same rows as Parquet, uncompressed."""
        rows = self.read_parquet().select("key", "value", "topic", "partition")
        rows.write.option("compression", "none").parquet(self.fresh())

    def plan(self) -> None:
        """Plan a query over the thousand stores, down to its tasks."""
        frame = self.spark.read.format("penstock").load(f"{self.many}/store-*")
        assert frame._jdf.queryExecution().toRdd().getNumPartitions() > 0

    def trigger(self) -> float:
        """Stream the store in triggers of 100,000 rows; return the median seconds of the full ones after the first."""
        lines = self.spark.readStream.format("penstock").option("startingOffsets", "earliest")
        frame = lines.option("maxOffsetsPerTrigger", TRIGGER_ROWS).load(str(self.store))
        stream = frame.writeStream.format("noop").option("checkpointLocation", self.fresh())
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        full = [p for p in query.recentProgress if p["numInputRows"] >= 0.99 * TRIGGER_ROWS]
        times = [int(p["durationMs"]["triggerExecution"]) for p in full[1:] or full]
        return statistics.median(times) / 1000


def seconds(job: Callable[[], None]) -> float:
    """Return how long a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Run every job once as a warm-up, then all in turns, in a changing order."""
    jobs = bench.jobs()
    chance = random.Random(1)
    figures: dict[str, list[float]] = {name: [] for name in GOALS}
    for number in range(rounds + 1):
        for name in chance.sample(list(jobs), len(jobs)):
            figure = jobs[name]()
            if number:
                figures[name].append(figure)
            print(f"round {number} of {rounds}: {name} {figure:,.3g}", file=sys.stderr)
    return figures


def show(figures: dict[str, list[float]], rounds: int) -> list[str]:
    """Print medians, spread and goals; return the figures that miss theirs."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    print(
        f"{machine.words()}, {CORES} cores used, pyspark {pyspark.__version__}, "
        f"bodies of {BODY} B, {rounds} rounds, medians (spread)\n"
    )
    missed = []
    for name, goal in GOALS.items():
        values = figures[name]
        figure = f"{medians[name]:,.3g} ({min(values):,.3g}-{max(values):,.3g})"
        verdict = ""
        if goal is not None:
            verdict = f"{goal.words:32}{'met' if goal.met(medians) else 'MISSED'}"
            missed += [] if goal.met(medians) else [name]
        print(f"{name:42}{figure:26}{verdict}")
    print()
    for name, (ours, other) in RATIOS.items():
        each = [a / b for a, b in zip(figures[ours], figures[other], strict=True)]
        print(f"{name:42}{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})")
    return missed


def option(name: str, default: str) -> str:
    """Return the word after an option."""
    arguments = sys.argv[1:]
    return arguments[arguments.index(name) + 1] if name in arguments else default


def main() -> None:
    """Create the data, run everything, print the table."""
    rounds, mib, kept = (
        int(option("--rounds", "5")),
        int(option("--mib", "1024")),
        option("--json", ""),
    )
    spark = local_session("bench", str(CORES))
    try:
        # Removing a hundred thousand small files takes a while: print the table first.
        with tempfile.TemporaryDirectory(dir=".") as home:
            figures = measure(Bench(spark, Path(home), mib), rounds)
            missed = show(figures, rounds)
            if kept:
                Path(kept).write_text(json.dumps({"figures": figures, "missed": missed}, indent=1))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
