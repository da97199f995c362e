"""Runs pieces of work as Spark tasks: each task gets a list of numbers and returns rows. This also works on Spark Connect."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import penstock
from penstock.errors import ConfigError, OffsetError
from penstock.format.names import is_waiting
from penstock_spark.arrow import pa
from penstock_spark.errors import DataLossError
from penstock_spark.jobs.progress import parallelism

_ADVICE = "run the job again with skip_lost (--skip-lost) to skip and count them"
# A task that goes through log takes about so much of it: it costs 30 ms, and this some 50.
TASK_BYTES = 64 << 20


def tasks_for(spark: Any, pieces: int, size: int) -> int:
    """Return the number of tasks for so many pieces of so many bytes in total."""
    return max(min(pieces, max(parallelism(spark), size // TASK_BYTES)), 1)


def over(
    spark: Any, pieces: int, tasks: int, ddl: str, job: Callable[[int], Iterable[pa.RecordBatch]]
) -> Any:
    """Return a frame of the rows that `job` returns for each number below `pieces`.

    `job` is pickled with everything that it refers to; it may be called more than once for a number.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from job(number)

    return spark.range(0, pieces, 1, tasks).mapInArrow(work, ddl)


T = TypeVar("T")
# What this process has open for the run of a job that it works for.
_kept: tuple[object, Any] | None = None


def kept(key: object, make: Callable[[], T]) -> T:
    """Return the cached value of this key, or create it; Spark reuses a process for the next task.

    Only the last value is kept. A key must be unique to one run of a job, or the value may be out of date.
    """
    global _kept  # noqa: PLW0603 - there is no other place that outlives a task
    if _kept is None or _kept[0] != key:
        _kept = (key, make())
    found: T = _kept[1]
    return found


def opened(run_id: str, root: str) -> "penstock.Store":
    """Return a store, open for reading."""
    return kept((run_id, root), lambda: penstock.open(root, read_only=True))


class Slice(NamedTuple):
    """Messages [start, stop) of one queue of one store, which one task reads."""

    root: str
    topic: str
    queue: int
    start: int
    stop: int

    @property
    def span(self) -> "penstock.QueueSpan":
        """The slice as a span of its store."""
        return penstock.QueueSpan(self.topic, self.queue, self.start, self.stop)


def refuse_loss(root: str) -> "penstock.Lost":
    """Return a callback that raises for missing messages of a store and names them; see `LowLevelStore.arrow_spans`."""

    def lost(span: penstock.QueueSpan, error: OffsetError | None) -> None:
        raise DataLossError(
            f"messages [{span.start}, {span.stop}) of queue {span.queue} of topic {span.topic!r} in {root} are gone: "
            f"retention deleted them after the job had determined the offsets to read",
            _ADVICE,
        ) from error

    return lost


def still_there(slices: Sequence[Slice], *, skips: bool) -> tuple[list[Slice], int]:
    """Return the part of planned slices that still exists, and the number of missing messages.

    With `skips` they are only counted; else they are a `DataLossError` that names the first of them.
    """
    found, gone = [], 0
    for root, mine in itertools.groupby(slices, lambda each: each.root):
        with penstock.open(root, read_only=True) as store:
            bounds = {(b.topic, b.queue): b for b in store.lowlevel.bounds(published=False)}
        for each in mine:
            there = bounds.get((each.topic, each.queue))
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


def slices_of(roots: Sequence[Path], topics: Sequence[str], rows: int) -> list[Slice]:
    """Return all messages of stores in slices of so many; raise `ConfigError` for a topic that no store has.

    Without topics, those of all, except topics whose messages wait to be delivered or committed.
    """
    found: list[Slice] = []
    there: set[str] = set()
    for root in roots:
        with penstock.open(root, read_only=True) as store:
            there.update(store.topics())
            # Messages after that are not planned: a crash of their writer may remove them, and the plan would miss them.
            for each in store.lowlevel.bounds():
                if each.topic in topics if topics else not is_waiting(each.topic):
                    for at in range(each.min_offset, each.max_offset, rows):
                        stop = min(at + rows, each.max_offset)
                        found.append(Slice(str(root), each.topic, each.queue, at, stop))
    for topic in topics:
        if topic not in there:
            known = ", ".join(sorted(there)) or "none"
            raise ConfigError(f"there is no topic {topic!r}; there are: {known}")
    return found
