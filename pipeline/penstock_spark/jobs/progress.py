"""Reports the progress of a job's tasks while they run.

A separate thread reads it from Spark's status tracker. A session over Spark Connect has no status tracker, so nothing is reported until the end.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OnProgress = Callable[[int, int], None]
_PAUSE_S = 0.1


def ignore(_done: int, _total: int) -> None:
    """Do nothing."""


def is_connect(spark: Any) -> bool:
    """Return whether a session is one over Spark Connect, without a JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: Any) -> int:
    """Return about how many tasks run at once."""
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", "8"))
    return int(spark.sparkContext.defaultParallelism)


@contextmanager
def watched(spark: Any, name: str, on_progress: OnProgress) -> Iterator[None]:
    """Call `on_progress` with the number of completed tasks and of all tasks that this block runs."""
    if is_connect(spark) or on_progress is ignore:
        yield
        return
    context = spark.sparkContext
    group = f"penstock-{name}-{uuid.uuid4()}"
    context.setJobGroup(group, f"penstock {name}")
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(context.statusTracker(), group, ended, on_progress), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def _watch(tracker: Any, group: str, ended: threading.Event, on_progress: OnProgress) -> None:
    while not ended.wait(_PAUSE_S):
        on_progress(*_tasks(tracker, group))


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            found = tracker.getStageInfo(stage)
            # Of a stage that is long done, or that was left out, nothing is known any more.
            if found is not None:
                done += found.numCompletedTasks
                total += found.numTasks
    return done, total
