"""The job `stats`: messages, bytes, rates and sizes of stores, by topic, tag, key and hour.

Headers are read, bodies are not: sizes are those of bodies. Quantiles are Spark's approximate ones, with a rank error
of at most 1 in 10,000. A rate is the number of messages divided by the time from the first to the last.
"""

import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

import penstock
from penstock.errors import ConfigError
from penstock_spark.arrow import pa
from penstock_spark.jobs.tasks import (
    OnProgress,
    Report,
    fresh_folder,
    ignore,
    over_slices,
    slices_of,
    stores_of,
    tasks_for,
    watched,
)
from penstock_spark.stores import StoreSpan

_NEEDED = ["tag", "keys", "store_time", "body_size"]
_ROW = pa.schema(
    [
        ("topic", pa.string()), ("tag", pa.string()), ("keys", pa.list_(pa.field("element", pa.string()))),
        ("time", pa.int64()), ("size", pa.int32()),
    ]
)  # fmt: skip
_TASK_ROWS = 100_000
_RANKS = (0.5, 0.99)
_ACCURACY = 10_000
_HOUR_MS = 3_600_000
NONE = "(none)"


@attrs.frozen(kw_only=True)
class StatsReport(Report):
    """Figures of stores.

    A row has `name`, `messages`, `bytes`, `per_second`, `first`, `last` (ISO times, UTC) and the sizes
    `min`, `mean`, `p50`, `p99`, `max`.

    Attributes:
        stores: how many stores were read.
        total: one row of everything.
        topics: a row for each topic, the largest first.
        tags: a row for each tag, the most frequent first; `(none)` for messages without one.
        keys: a row for each of the most frequent keys.
        hours: a row for each hour that has messages, in order.
        plots: files of the plots, if plots were requested.
    """

    stores: int
    total: dict[str, Any]
    topics: list[dict[str, Any]]
    tags: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    hours: list[dict[str, Any]]
    plots: list[str] = attrs.Factory(list)

    def summary(self) -> dict[str, Any]:
        figures = {name: value for name, value in self.total.items() if name != "name"}
        return {"stores": self.stores, **figures, "seconds": round(self.seconds, 3)}


def run(
    spark: Any,
    paths: Sequence[str] | str,
    *,
    topics: Sequence[str] = (),
    top: int = 20,
    plots: str | None = None,
    on_progress: OnProgress = ignore,
) -> StatsReport:
    """Return counts, sizes and rates of the messages of stores.

    Args:
        spark: a session, classic or over Spark Connect.
        paths: stores, globs of them, datasets.
        topics: the topics; all if empty.
        top: how many keys.
        plots: a new folder for plots; needs matplotlib.
        on_progress: called with the numbers of tasks done and of all tasks.
    """
    began = time.monotonic()
    if top < 1:
        raise ConfigError(f"top is {top}; it must be at least 1")
    folder = fresh_folder(plots, "the folder for plots") if plots else None
    # Before anything is read, since matplotlib may be missing.
    plotting = importlib.import_module("penstock_spark.jobs.plots") if folder is not None else None
    roots = stores_of(paths)
    pieces = slices_of(roots, topics, _TASK_ROWS)
    with watched(spark, "stats", on_progress):
        count = sum(piece.stop - piece.start for piece in pieces)
        tasks = tasks_for(spark, len(pieces), count, _TASK_ROWS)
        frame = over_slices(spark, pieces, tasks, _ROW, headers).persist()
        try:
            rows = _figures(frame, top)
        finally:
            frame.unpersist()
    report = StatsReport(stores=len(roots), **rows, seconds=time.monotonic() - began)
    if plotting is not None:
        report = attrs.evolve(report, plots=[str(path) for path in plotting.draw(report, folder)])
    return report


def headers(piece: StoreSpan, store: "penstock.Store") -> Iterator[pa.RecordBatch]:
    """Yield the counted columns of the messages of one slice."""
    for batch in store.lowlevel.arrow_spans([piece.span], _NEEDED, verify=False):
        topic = pa.array([piece.topic]).take(pa.array([0] * batch.num_rows, pa.int32()))
        arrays = [
            topic,
            batch.column("tag"),
            batch.column("keys").cast(_ROW.field("keys").type),
            batch.column("store_time").cast(pa.int64()),
            batch.column("body_size"),
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ROW)


def _figures(frame: Any, top: int) -> dict[str, Any]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    tagged = f.coalesce(f.when(f.col("tag") != "", f.col("tag")), f.lit(NONE))
    hour = f.floor(f.col("time") / _HOUR_MS)
    keyed = frame.withColumn("key", f.explode("keys")).where("key <> ''")
    often = keyed.groupBy("key").count().orderBy(f.desc("count"), "key").limit(top).collect()
    keyed = keyed.where(f.col("key").isin([row["key"] for row in often]))
    return {
        "total": (_grouped(frame, f.lit("all")) or [_empty("all")])[0],
        "topics": sorted(_grouped(frame, f.col("topic")), key=lambda r: (-r["bytes"], r["name"])),
        "tags": sorted(_grouped(frame, tagged), key=_by_count),
        "keys": sorted(_grouped(keyed, f.col("key")), key=_by_count) if often else [],
        "hours": [
            {**row, "name": _iso(int(row["name"]) * _HOUR_MS), "per_second": row["messages"] / 3600}
            for row in sorted(_grouped(frame, hour), key=lambda r: int(r["name"]))
        ],
    }


def _by_count(row: dict[str, Any]) -> tuple[int, str]:
    return -row["messages"], row["name"]


def _grouped(frame: Any, column: Any) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    size = f.col("size")
    found = (
        frame.groupBy(column.alias("name"))
        .agg(
            f.count("*").alias("messages"), f.sum(size).alias("bytes"),
            f.min("time").alias("first"), f.max("time").alias("last"),
            f.min(size).alias("min"), f.avg(size).alias("mean"), f.max(size).alias("max"),
            f.percentile_approx(size, list(_RANKS), _ACCURACY).alias("ranks"),
        )
        .collect()
    )  # fmt: skip
    return [_row(row.asDict()) for row in found]


def _row(found: dict[str, Any]) -> dict[str, Any]:
    first, last = found["first"], found["last"]
    seconds = (last - first) / 1000
    return {
        "name": str(found["name"]), "messages": found["messages"], "bytes": found["bytes"],
        "per_second": round(found["messages"] / seconds if seconds > 0 else 0.0, 3),
        "first": _iso(first), "last": _iso(last), "min": found["min"],
        "mean": round(found["mean"], 1), "p50": found["ranks"][0], "p99": found["ranks"][1],
        "max": found["max"],
    }  # fmt: skip


def _empty(name: str) -> dict[str, Any]:
    zeros = dict.fromkeys(("min", "mean", "p50", "p99", "max"), 0)
    return {"name": name, "messages": 0, "bytes": 0, "per_second": 0.0, "first": None, "last": None,
        **zeros}  # fmt: skip


def _iso(time_ms: int) -> str:
    """Return a time in UTC; a number that is not a calendar time is returned as it is."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("stats"))
