"""Pieces of work as Spark tasks: a list of numbers goes out, rows come back. The same on Spark Connect."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

import penstock
from penstock_spark.jobs.progress import parallelism

# A task that goes through log takes about so much of it: it costs 30 ms, and this some 50.
TASK_BYTES = 64 << 20


def tasks_for(spark: Any, pieces: int, size: int) -> int:
    """Return how many tasks share so many pieces of so many bytes together."""
    return max(min(pieces, max(parallelism(spark), size // TASK_BYTES)), 1)


def over(
    spark: Any, pieces: int, tasks: int, ddl: str, job: Callable[[int], pa.RecordBatch]
) -> Any:
    """Return a frame of what `job` gives for each number below `pieces`.

    `job` is pickled, with all that it refers to; it may be called again for a number.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield job(number)

    return spark.range(0, pieces, 1, tasks).mapInArrow(work, ddl)


T = TypeVar("T")
# What this process has open for the run of a job that it works for.
_kept: tuple[object, Any] | None = None


def kept(key: object, make: Callable[[], T]) -> T:
    """Return what was made for this key, or make it; Spark uses a process again for the next task.

    Only the last one is kept. A key must be of one run of a job, or what it sees may be old.
    """
    global _kept  # noqa: PLW0603 - there is no other place that outlives a task
    if _kept is None or _kept[0] != key:
        _kept = (key, make())
    found: T = _kept[1]
    return found


def opened(run_id: str, root: str) -> "penstock.Store":
    """Return a store, open for reading."""
    return kept((run_id, root), lambda: penstock.open(root, read_only=True))
