"""What all jobs share: their stores and folders, work as Spark tasks, progress, reports.

Work is cut into pieces with numbers; each task gets a list of numbers and returns rows. This also works on Spark
Connect. A separate thread reads the progress from Spark's status tracker. A session over Spark Connect has no status
tracker, so nothing is reported until the end.
"""

import functools
import itertools
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs

import penstock
from penstock.errors import ConfigError, NotAStoreError, OffsetError
from penstock.escape import near
from penstock.format.names import is_hidden, is_waiting
from penstock_spark.arrow import pa
from penstock_spark.errors import DataLossError
from penstock_spark.stores import StoreSpan, find_stores, is_store, without_scheme

OnProgress = Callable[[int, int], None]
_T = TypeVar("_T")

_ADVICE = "run the job again with skip_lost (--skip-lost) to skip and count them"
_PAUSE_S = 0.1
# A task that goes through log takes about so much of it: it costs 30 ms, and this some 50.
_TASK_BYTES = 64 << 20


# --- stores and folders, resolved before a task starts


def local_folder(text: str, what: str) -> Path:
    """Return the absolute path of a folder that driver and tasks open."""
    plain = without_scheme(text)
    if not plain or "://" in plain:
        raise ConfigError(
            f"{what} is {text!r}; it must be a folder that the driver and all tasks see under one path"
        )
    return Path(plain).expanduser().absolute()


def is_within(folder: Path, root: Path) -> bool:
    """Return whether a folder is another one, or is inside of it, however the two are written."""
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root))


def stores_of(paths: Sequence[str] | str) -> list[Path]:
    """Return the stores that paths name: folders, globs, and datasets, which represent their shards."""
    found: dict[Path, None] = {}
    for text in [paths] if isinstance(paths, str) else paths:
        folder = local_folder(text, "the path of a store")
        named = [Path(each.name) for each in find_stores([str(Path(text).expanduser())]).stores]
        # Other things may lie beside the stores that a glob matches.
        stores = [store for store in named if is_store(store)]
        if not stores:
            raise NotAStoreError(folder, "no folder with a commitlog is at this path")
        found |= dict.fromkeys(stores)
    if not found:
        raise ConfigError("give at least one store: its folder, a glob, or a dataset")
    return list(found)


def one_store(path: str) -> Path:
    """Return the one store that a path names."""
    found = stores_of(path)
    if len(found) != 1:
        raise ConfigError(
            f"{path} names {len(found)} stores; the job takes one store: run it once for each"
        )
    return found[0]


def fresh_folder(text: str, what: str) -> Path:
    """Return a folder to be created; raise `ConfigError` if it exists and is not empty."""
    folder = local_folder(text, what)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{what} is {folder}, which already exists: give a new folder")
    return folder


# --- progress


def ignore(_done: int, _total: int) -> None:
    """Report no progress."""


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
            # Nothing is known of a stage that is long done, or that was left out.
            if found is not None:
                done += found.numCompletedTasks
                total += found.numTasks
    return done, total


# --- work as tasks


def tasks_for(spark: Any, pieces: int, total: int, per_task: int = _TASK_BYTES) -> int:
    """Return the number of tasks for so many pieces with a total of bytes, or messages; one takes `per_task`."""
    return max(min(pieces, max(parallelism(spark), total // per_task)), 1)


def over(
    spark: Any, pieces: int, tasks: int, schema: Any, job: Callable[[int], Iterable[pa.RecordBatch]]
) -> Any:
    """Return a frame of the rows that `job` returns for each number below `pieces`.

    `schema` is Arrow's or Spark's. `job` is pickled with all that it refers to, and may be called more than once
    for a number.
    """
    if isinstance(schema, pa.Schema):
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - an extra

        schema = from_arrow_schema(schema)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from job(number)

    return spark.range(0, pieces, 1, tasks).mapInArrow(work, schema)


# What this process has open for the run of a job that it works for.
_kept: tuple[object, Any] | None = None


def kept(key: object, make: Callable[[], _T]) -> _T:
    """Return the cached value of this key, or create it; Spark reuses a process for the next task.

    Only the last value is kept. A key must be unique to one run of a job, or the value may be out of date.
    """
    global _kept  # noqa: PLW0603 - there is no other place that outlives a task
    if _kept is None or _kept[0] != key:
        _kept = (key, make())
    found: _T = _kept[1]
    return found


def over_slices(
    spark: Any,
    slices: Sequence[StoreSpan],
    tasks: int,
    schema: Any,
    read: Callable[[StoreSpan, "penstock.Store"], Iterator[pa.RecordBatch]],
) -> Any:
    """Return a frame of the rows that `read` returns for each slice and its store, open for reading."""
    run_id, pieces = str(uuid.uuid4()), list(slices)

    def job(number: int) -> Iterator[pa.RecordBatch]:
        return read(pieces[number], opened(run_id, pieces[number].store))

    return over(spark, len(pieces), tasks, schema, job)


def opened(run_id: str, root: str) -> "penstock.Store":
    """Return a store, open for reading, in a task of a run."""
    return kept((run_id, root), lambda: penstock.open(root, read_only=True))


def refuse_loss(root: str) -> "penstock.Lost":
    """Return a callback that raises for missing messages of a store and names them; see `LowLevelStore.arrow_spans`."""

    def lost(span: penstock.QueueSpan, error: OffsetError | None) -> None:
        raise DataLossError(
            f"messages [{span.start}, {span.stop}) of queue {span.queue} of topic {span.topic!r} in {root} are gone: "
            f"retention deleted them after the job had determined the offsets to read, or the queue has lost their "
            f"entries, as penstock verify shows",
            _ADVICE,
        ) from error

    return lost


def still_there(slices: Sequence[StoreSpan], *, skips: bool) -> tuple[list[StoreSpan], int]:
    """Return the part of planned slices that still exists, and the number of missing messages.

    With `skips` they are only counted; else they are a `DataLossError` that names the first of them.
    """
    found, gone = [], 0
    for root, mine in itertools.groupby(slices, lambda each: each.store):
        with penstock.open(root, read_only=True) as store:
            generation = functools.cache(store.lowlevel.topic_generation)
            bounds = {
                (b.topic, b.queue, generation(b.topic)): b
                for b in store.lowlevel.bounds(published=False)
            }
        for each in mine:
            there = bounds.get((each.topic, each.queue, each.generation))
            low, high = (there.min_offset, there.max_offset) if there else (each.stop, each.stop)
            start = min(max(each.start, low), each.stop)
            stop = max(min(each.stop, high), start)
            if not skips and (start, stop) != (each.start, each.stop):
                ends = (each.start, start) if start > each.start else (stop, each.stop)
                refuse_loss(root)(penstock.QueueSpan(each.topic, each.queue, *ends), None)
            gone += each.stop - each.start - (stop - start)
            if start < stop:
                found.append(each._replace(start=start, stop=stop))
    return found, gone


def slices_of(roots: Sequence[Path], topics: Sequence[str], rows: int) -> list[StoreSpan]:
    """Return all messages of stores in slices of so many; raise `ConfigError` for a topic that no store has.

    Without topics, those of all, except topics whose messages wait to be delivered or committed.
    """
    found: list[StoreSpan] = []
    there: set[str] = set()
    for root in roots:
        with penstock.open(root, read_only=True) as store:
            there.update(store.topics(system=True))
            generation = functools.cache(store.lowlevel.topic_generation)
            # Messages after that are not planned: a crash of their writer may remove them.
            for each in store.lowlevel.bounds():
                if each.topic in topics if topics else not is_waiting(each.topic):
                    for at in range(each.min_offset, each.max_offset, rows):
                        stop = min(at + rows, each.max_offset)
                        place = str(root), each.topic, each.queue
                        found.append(StoreSpan(*place, at, stop, generation(each.topic)))
    check_topics(topics, there)
    return found


def check_topics(topics: Sequence[str], there: set[str]) -> None:
    """Raise `ConfigError` for a topic that is not there."""
    for topic in topics:
        if topic not in there:
            known = sorted(name for name in there if not is_hidden(name))
            listed = ", ".join(known) or "none"
            raise ConfigError(
                f"there is no topic {topic!r}{near(topic, known)}; there are: {listed}"
            )


# --- reports


@attrs.frozen(kw_only=True)
class Report:
    """The result of a job.

    Attributes:
        seconds: how long it took, planning included.
    """

    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**attrs.asdict(self), "seconds": round(self.seconds, 3)}

    def summary(self) -> dict[str, Any]:
        """Return the facts that fit into one line, without the tables."""
        return {k: v for k, v in self.facts().items() if not isinstance(v, list | dict)}

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return json.dumps(self.facts(), ensure_ascii=False)
