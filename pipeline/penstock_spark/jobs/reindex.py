"""The job `reindex`: queues and index of a store, a broker's directory too, made anew in parallel and swapped in whole.

The driver holds the store's lock from beginning to end. First a task for each segment notes what queues
and index are made from, then a task for each part makes its files, then the driver puts them together.
Killed at any point, the store has its old files or the new ones; running it again finishes.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

import attrs
import pyarrow as pa

from penstock.segmentwise import Made, Reindex, ReindexTask, Stretch, start_reindex
from penstock_spark.jobs.progress import OnProgress, ignore, parallelism, watched
from penstock_spark.jobs.report import Report
from penstock_spark.jobs.targets import one_store
from penstock_spark.jobs.tasks import over, tasks_for

_STRETCH = pa.schema(
    [
        ("base", pa.int64()), ("records", pa.int64()), ("keys", pa.int64()), ("end", pa.int64()), ("stop", pa.int64()),
        ("damages", pa.list_(pa.list_(pa.int64()))),
    ]
)  # fmt: skip
_STRETCH_DDL = "base bigint, records bigint, keys bigint, end bigint, stop bigint, damages array<array<bigint>>"
_MADE = pa.schema([("part", pa.int64()), ("name", pa.string()), ("entries", pa.int64())])
_MADE_DDL = "part bigint, name string, entries bigint"
# Parts of the queues for each task that runs at once: they are of unequal size.
_PARTS_A_SLOT = 2
_PARTS_MAX = 64


@attrs.frozen(kw_only=True)
class Reindexed(Report):
    """What one store's reindex did.

    Attributes:
        store: its folder.
        segments: segments that were read.
        records: records whose places were noted.
        queues: queues there are now.
        bytes: bytes of log.
        damages: stretches of the log that are no sound records; what the old queues had there is kept.
        left: dispatchers left alone, since they need the records themselves; `penstock repair` makes them.
        saved_to: the folder with what was replaced; None where it was removed.
    """

    store: str
    segments: int
    records: int
    queues: int
    bytes: int
    damages: list[list[int]]
    left: list[str]
    saved_to: str | None

    @property
    def listed(self) -> tuple[str, ...]:
        """See `Report`."""
        return ("left",)

    def summary(self) -> dict[str, Any]:
        """See `Report`."""
        return {**super().summary(), "damages": len(self.damages)}


def run(
    spark: Any,
    path: str,
    *,
    keep: bool = True,
    config: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: OnProgress = ignore,
) -> Reindexed:
    """Make queues and index of one store anew.

    Args:
        spark: a session, classic or over Spark Connect.
        path: the store's folder, closed: nobody has it open for writing.
        keep: leave what is replaced in `penstock/saved` within the store.
        config: a TOML file of settings, as for `penstock.open`.
        settings: as for `penstock.open`.
        on_progress: called with the numbers of tasks done and of all tasks.
    """
    began = time.monotonic()
    store = one_store(path)
    shards = min(_PARTS_A_SLOT * parallelism(spark), _PARTS_MAX)
    with (
        start_reindex(store, config, shards=shards, settings=settings) as work,
        watched(spark, "reindex", on_progress),
    ):
        done = work.finish(_condensed(spark, work), _made(spark, work), keep=keep)
        size = len(work.bases) * work.task.recipe.geometry.segment_bytes
    return Reindexed(
        store=str(store), segments=done.segments, records=done.records, queues=done.queues,
        bytes=size, damages=[list(each) for each in done.damages], left=list(done.left),
        saved_to=str(done.saved_to) if done.saved_to else None, seconds=time.monotonic() - began,
    )  # fmt: skip


def _condensed(spark: Any, work: Reindex) -> list[Stretch]:
    """Let tasks note the rows of all segments."""
    bases, task = work.bases, work.task
    if not bases:
        return []
    tasks = tasks_for(spark, len(bases), len(bases) * task.recipe.geometry.segment_bytes)
    frame = over(spark, len(bases), tasks, _STRETCH_DDL, lambda n: [condense(task, bases[n])])
    return [
        Stretch(**{**row, "damages": tuple((a, b) for a, b in row["damages"])})
        for row in frame.toArrow().to_pylist()
    ]


def condense(task: ReindexTask, base: int) -> pa.RecordBatch:
    """Note the rows of one segment; returns what the walk over it came to."""
    stretch = attrs.asdict(task.condense(base), recurse=False)
    return pa.RecordBatch.from_pylist([stretch], _STRETCH)


def _made(spark: Any, work: Reindex) -> dict[int, Made]:
    """Let tasks make the files of all parts."""
    parts, task = work.parts, work.task
    frame = over(spark, len(parts), len(parts), _MADE_DDL, lambda n: [make(task, parts[n])])
    rows = frame.toArrow().to_pylist()
    return {row["part"]: Made(row["name"], row["entries"]) for row in rows}


def make(task: ReindexTask, part: int) -> pa.RecordBatch:
    """Make the files of one part; returns what was made."""
    made = attrs.asdict(task.make(part))
    return pa.RecordBatch.from_pylist([{"part": part, **made}], _MADE)


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("reindex"))
