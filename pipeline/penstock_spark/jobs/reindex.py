"""The job `reindex` rebuilds queues and index of a store or broker's directory in parallel; replaces them atomically.

The driver holds the store's lock from beginning to end. First a task for each segment extracts the rows that
queues and index are built from, then a task for each part builds its files, then the driver assembles them.
If the job is killed, the store has either its old files or the new ones; running the job again completes it.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

import attrs

from penstock_spark.arrow import pa
from penstock_spark.jobs.tasks import (
    OnProgress,
    Report,
    ignore,
    one_store,
    over,
    parallelism,
    tasks_for,
    watched,
)
from penstock_tools.segmentwise import Made, Reindex, ReindexTask, Stretch, start_reindex

_STRETCH = pa.schema(
    [
        ("base", pa.int64()), ("records", pa.int64()), ("keys", pa.int64()), ("end", pa.int64()), ("stop", pa.int64()),
        ("damages", pa.list_(pa.list_(pa.int64()))),
    ]
)  # fmt: skip
_MADE = pa.schema([("part", pa.int64()), ("name", pa.string()), ("entries", pa.int64())])
# Parts of the queues for each task that runs at once: they are of unequal size.
_PARTS_A_SLOT = 2
_PARTS_MAX = 64


@attrs.frozen(kw_only=True)
class Reindexed(Report):
    """The result of reindexing one store.

    Attributes:
        store: its folder.
        segments: segments that were read.
        records: records that were indexed.
        queues: number of queues after the rebuild.
        bytes: bytes of log.
        damages: ranges of the log that are not valid records; the old queue entries for them were kept.
        left: dispatchers that were not rebuilt, since they need the record bodies; `penstock repair` rebuilds them.
        saved_to: the folder with the replaced files; None if they were deleted.
    """

    store: str
    segments: int
    records: int
    queues: int
    bytes: int
    damages: list[list[int]]
    left: list[str]
    saved_to: str | None

    def summary(self) -> dict[str, Any]:
        facts = self.facts()
        del facts["damages"]
        return {**facts, "damages": len(self.damages)}


def run(
    spark: Any,
    path: str,
    *,
    keep: bool = True,
    config: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: OnProgress = ignore,
) -> Reindexed:
    """Rebuild the queues and index of one store.

    Args:
        spark: a session, classic or over Spark Connect.
        path: the store's folder; no process may have it open for writing.
        keep: move the replaced files to `penstock/saved` in the store instead of deleting them.
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
    """Extract the rows of all segments, in tasks."""
    bases, task = work.bases, work.task
    if not bases:
        return []
    tasks = tasks_for(spark, len(bases), len(bases) * task.recipe.geometry.segment_bytes)
    frame = over(spark, len(bases), tasks, _STRETCH, lambda n: [condense(task, bases[n])])
    return [
        Stretch(**{**row, "damages": tuple((a, b) for a, b in row["damages"])})
        for row in frame.toArrow().to_pylist()
    ]


def condense(task: ReindexTask, base: int) -> pa.RecordBatch:
    """Extract the rows of one segment; return the result of the scan as a row."""
    scanned = attrs.asdict(task.condense(base), recurse=False)
    return pa.RecordBatch.from_pylist([scanned], _STRETCH)


def _made(spark: Any, work: Reindex) -> dict[int, Made]:
    """Build the files of all parts, in tasks."""
    parts, task = work.parts, work.task
    frame = over(spark, len(parts), len(parts), _MADE, lambda n: [make(task, parts[n])])
    rows = frame.toArrow().to_pylist()
    return {row["part"]: Made(row["name"], row["entries"]) for row in rows}


def make(task: ReindexTask, part: int) -> pa.RecordBatch:
    """Build the files of one part; return what was built."""
    made = attrs.asdict(task.make(part))
    return pa.RecordBatch.from_pylist([{"part": part, **made}], _MADE)


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("reindex"))
