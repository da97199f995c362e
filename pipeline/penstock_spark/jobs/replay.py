"""The job `replay`: messages of a store, or rows of Parquet, written into another store.

Messages can be filtered and re-keyed, and the rate can be bounded. The sink writes each batch once (see
`jobs.messages`), so a killed replay continues when it is run again, and a completed one adds nothing. The order within
a queue of the source is kept.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.errors import ConfigError
from penstock_spark.jobs.messages import (
    Plan,
    Rows,
    Transform,
    app_of,
    changed,
    check_app,
    check_target,
    from_parquet,
    from_stores,
    ordered,
    parquet_about,
    parquet_files,
    spark_schema,
    unified,
    write_batch,
)
from penstock_spark.jobs.tasks import (
    OnProgress,
    Report,
    ignore,
    local_folder,
    slices_of,
    still_there,
    stores_of,
)
from penstock_spark.stores import StoreSpan, is_dataset, without_scheme

BATCH_ROWS = 500_000
# With a rate, a batch is what may go in so many seconds.
_BATCH_S = 5.0


@attrs.frozen(kw_only=True)
class Pace:
    """How fast rows may be read, before the filter, and how many are one batch; 0 is no limit, and the default."""

    rows_per_second: float = 0
    batch_rows: int = 0


@attrs.frozen(kw_only=True)
class ReplayReport(Report):
    """The result of a replay.

    Attributes:
        source: what was read.
        target: the store that was written to.
        app: the name under which another run continues it.
        batches: number of batches of the replay. written: batches that this run wrote; others were written before.
        rows: rows that this run read, before the filter.
        lost: messages that retention deleted after the replay began; this run skipped them.
    """

    source: str
    target: str
    app: str
    batches: int
    written: int
    rows: int
    lost: int


class _Source:
    """The source, and the changes to its messages: slices of stores, or rows of Parquet files."""

    def __init__(
        self, spark: Any, text: str, change: Transform, options: Mapping[str, str], *, skips: bool
    ) -> None:
        self._spark, self._change, self._options, self._skips = spark, change, options, skips
        self.stores = _stores(text)
        if self.stores:
            self._slices = slices_of(self.stores, change.topics, 1 << 62)
            self.rows = sum(each.stop - each.start for each in self._slices)
        else:
            self._files = parquet_files(text)
            abouts = [parquet_about(path) for path in self._files]
            self._counts = [about[0] for about in abouts]
            self.rows = sum(self._counts)
            schemas = [about[1] for about in abouts]
            self.schema = spark_schema(unified(dict(zip(self._files, schemas, strict=True))))

    def batches(self, rows: int) -> list[list[list[Any]]]:
        """Divide the source into batches of about `rows` rows, as plain values."""
        return list(self._shared(rows) if self.stores else self._one_by_one(rows))

    def _shared(self, rows: int) -> Iterator[list[list[Any]]]:
        """Take rows of every queue for each batch, in proportion to its length, which is about the order of storing."""
        count = -(-self.rows // rows)
        for n in range(count):
            batch = []
            for each in self._slices:
                size = each.stop - each.start
                low, high = each.start + size * n // count, each.start + size * (n + 1) // count
                if low < high:
                    batch.append(list(each._replace(start=low, stop=high)))
            if batch:
                yield batch

    def _one_by_one(self, rows: int) -> Iterator[list[list[Any]]]:
        batch: list[list[Any]] = []
        room = rows
        for path, count in zip(self._files, self._counts, strict=True):
            at = 0
            while at < count:
                stop = min(count, at + room)
                batch.append([str(path), at, stop])
                room -= stop - at
                at = stop
                if room == 0:
                    yield batch
                    batch, room = [], rows
        if batch:
            yield batch

    def left_of(self, batch: list[list[Any]]) -> tuple[Sequence[StoreSpan | Rows], int]:
        """Return the part of a planned batch that still exists, and the number of missing rows."""
        if not self.stores:
            return [Rows(*part) for part in batch], 0
        return still_there([StoreSpan(*part) for part in batch], skips=self._skips)

    def frame(self, batch: Sequence[Sequence[Any]]) -> Any:
        """Return one batch as the sink takes it."""
        if self.stores:
            rows = from_stores(self._spark, [StoreSpan(*part) for part in batch])
        else:
            rows = from_parquet(self._spark, [Rows(*part) for part in batch], self.schema)
        return changed(rows, self._change, self._options)


def _stores(text: str) -> list[Path]:
    """Return the stores that a text names; empty if it names Parquet files."""
    root = Path(without_scheme(text)).expanduser()
    is_parquet = root.exists() and not ((root / "commitlog").is_dir() or is_dataset(root))
    return [] if is_parquet else stores_of(text)


def run(
    spark: Any,
    source: str,
    target: str,
    *,
    change: Transform | None = None,
    pace: Pace | None = None,
    app: str | None = None,
    skip_lost: bool = False,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ReplayReport:
    """Write the messages of a source into a store.

    Args:
        spark: a session, classic or over Spark Connect.
        source: a store, a glob of stores, a dataset, or a folder or file of Parquet.
        target: the store's folder; created if it does not exist.
        change: the filter, and the changes to messages that pass it.
        pace: how fast, and in which batches.
        app: the name under which a run can be continued; derived from `source`, `change` and `options` if None.
        skip_lost: count messages that retention deleted after the replay began, instead of raising `DataLossError`.
        options: further options of the sink, as `partitions` or `partitioner`.
        on_progress: called with the numbers of batches done and of all batches.
        clock: returns seconds; only differences are used.
        sleep: waits so many seconds.
    """
    began = clock()
    change, pace, given = change or Transform(), pace or Pace(), dict(options or {})
    folder = local_folder(target, "the store to write to")
    read = _Source(spark, source, change, given, skips=skip_lost)
    check_target(folder, read.stores)
    about = _about(source, change, given)
    name = check_app(app) if app else app_of("replay", about)
    plan = Plan(folder, name)
    is_there = plan.load(about)
    batches = plan.batches if is_there else read.batches(_batch_rows(pace))
    if batches:
        # Invalid expressions are reported before the plan is stored.
        read.frame(batches[0])
    if not is_there:
        plan.save(about, batches)
    first = plan.done
    rows, lost = _write(plan, read, given, on_progress, pace.rows_per_second, clock, sleep)
    return ReplayReport(
        source=source, target=str(folder), app=plan.app, batches=len(plan.batches),
        written=len(plan.batches) - first, rows=rows, lost=lost, seconds=clock() - began,
    )  # fmt: skip


def _write(
    plan: Plan,
    read: _Source,
    options: Mapping[str, str],
    on_progress: OnProgress,
    rate: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[int, int]:
    """Write the batches of a plan that are not written yet; return how many rows they have, and how many are missing.

    The rate, in rows per second, is counted from the first batch; 0 is no limit.
    """
    began = clock()
    rows = lost = 0
    for number in range(plan.done, len(plan.batches)):
        wait = rows / rate - (clock() - began) if rows and rate else 0
        if wait > 0:
            sleep(wait)
        batch, gone = read.left_of(plan.batches[number])
        count = sum(part.stop - part.start for part in batch)
        write_batch(ordered(read.frame(batch), count), plan.target, plan.app, number, options)
        plan.note(number + 1)
        rows, lost = rows + count, lost + gone
        on_progress(number + 1, len(plan.batches))
    return rows, lost


def _about(source: str, change: Transform, options: dict[str, str]) -> dict[str, Any]:
    """Return the values that identify a replay into a target; not what the source has now, as its plan has that."""
    found = os.path.abspath(Path(without_scheme(source)).expanduser())  # noqa: PTH100 - Path.absolute leaves `..` in
    facts = attrs.asdict(change, value_serializer=_listed)
    return {"source": found, "change": facts, "options": options}


def _listed(_instance: object, _field: object, value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _batch_rows(pace: Pace) -> int:
    if pace.rows_per_second < 0 or pace.batch_rows < 0:
        raise ConfigError("a rate or the rows of a batch cannot be negative")
    if pace.batch_rows:
        return pace.batch_rows
    rate = pace.rows_per_second
    return max(min(int(rate * _BATCH_S), BATCH_ROWS), 1) if rate else BATCH_ROWS


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("replay"))
