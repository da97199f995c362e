"""The job `export`: topics of stores to Parquet by topic and date, each message once.

Each run exports the offsets that are not exported yet, per queue (see `export_folder`). A killed run or a repeated
task exports no message twice, since the next run treats complete files as exported. The driver
holds the folder's lock; driver and tasks see folder and stores under the same paths.
"""

import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

import penstock
from penstock.errors import ConfigError
from penstock.format.names import is_waiting
from penstock_spark.arrow import pa
from penstock_spark.export_folder import Exported, Ranges, Written, missing, shortened
from penstock_spark.jobs.tasks import (
    OnProgress,
    Report,
    check_topics,
    ignore,
    is_within,
    local_folder,
    opened,
    over,
    stores_of,
    tasks_for,
    watched,
)
from penstock_spark.stores import StoreSpan

# Messages of one file, at most.
FILE_ROWS = 200_000
# A task takes about so many messages, of one queue or of many.
_TASK_ROWS = 100_000
# From the report's figures to the columns of the tasks' results.
_SUMS = {"messages": "rows", "bytes": "bytes", "files": "files"}

_WRITTEN = pa.schema([(name, pa.int64()) for name in ("id", "rows", "bytes", "files", "lost")])


@attrs.frozen(kw_only=True)
class ExportReport(Report):
    """The result of an export.

    Attributes:
        target: the folder.
        stores: number of stores.
        messages: messages exported by this run.
        bytes: bytes of Parquet.
        files: files of Parquet.
        lost: messages that retention deleted before they were exported.
        topics: for each topic `messages`, `bytes` and `files`.
    """

    target: str
    stores: int
    messages: int
    bytes: int
    files: int
    lost: int
    topics: dict[str, dict[str, int]]


@attrs.define
class _Plan:
    """The slices of all stores to export."""

    pieces: list[StoreSpan] = attrs.Factory(list)
    roots: dict[str, Path] = attrs.Factory(dict)
    done: dict[str, dict[tuple[str, str], Ranges]] = attrs.Factory(dict)
    lost: int = 0


def run(
    spark: Any,
    paths: Sequence[str] | str,
    target: str,
    *,
    topics: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    file_rows: int = FILE_ROWS,
    on_progress: OnProgress = ignore,
) -> ExportReport:
    """Export the messages of stores that the folder does not have yet.

    Args:
        spark: a session, classic or over Spark Connect.
        paths: stores, globs of them, datasets.
        target: the folder for the Parquet files; created if it does not exist.
        topics: the topics; all if empty.
        names: from a store's folder to its name in file names; by default the folder's name.
        file_rows: messages of one file, at most.
        on_progress: called with the numbers of tasks done and of all tasks.
    """
    began = time.monotonic()
    if file_rows < 1:
        raise ConfigError(f"file_rows is {file_rows}; it must be at least 1")
    folder = local_folder(target, "the folder to export to")
    roots = _named(stores_of(paths), names or {})
    for root in roots.values():
        if is_within(folder, root):
            raise ConfigError(f"{folder} is inside the store {root}: give a folder outside of it")
    check_topics(topics, _topics_of(roots.values()))
    with Exported(folder) as exported:
        plan = _plan(exported, roots, topics, file_rows)
        with watched(spark, "export", on_progress):
            rows = _write_all(spark, folder, plan)
        for piece in plan.pieces:
            place = shortened(piece.topic), piece.queue_name
            plan.done[piece.store].setdefault(place, []).append((piece.start, piece.stop))
        for store, done in plan.done.items():
            exported.note(store, done)
    by_topic: dict[str, dict[str, int]] = {}
    for row in rows:
        sums = by_topic.setdefault(plan.pieces[row["id"]].topic, dict.fromkeys(_SUMS, 0))
        for name, column in _SUMS.items():
            sums[name] += row[column]
    total = {name: sum(each[name] for each in by_topic.values()) for name in _SUMS}
    return ExportReport(
        target=str(folder), stores=len(roots), lost=plan.lost + sum(row["lost"] for row in rows),
        topics=dict(sorted(by_topic.items())),
        seconds=time.monotonic() - began, **total,
    )  # fmt: skip


def _named(stores: list[Path], names: Mapping[str, str]) -> dict[str, Path]:
    """Return the stores by their names in the export folder."""
    chosen = {os.path.realpath(path): name for path, name in names.items()}
    found: dict[str, Path] = {}
    for root in stores:
        name = chosen.pop(os.path.realpath(root), root.name)
        if name in found:
            raise ConfigError(
                f"{found[name]} and {root} both have the name {name!r}: give one of them another name"
            )
        found[name] = root
    if chosen:
        raise ConfigError(
            f"a name is given for {next(iter(chosen))}, which is not one of the stores"
        )
    return found


def _topics_of(roots: Iterable[Path]) -> set[str]:
    there: set[str] = set()
    for root in roots:
        with penstock.open(root, read_only=True) as store:
            there.update(store.topics(system=True))
    return there


def _plan(
    exported: Exported, roots: Mapping[str, Path], topics: Sequence[str], file_rows: int
) -> _Plan:
    plan = _Plan(roots=dict(roots))
    for name, root in roots.items():
        with penstock.open(root, read_only=True) as store:
            exported.claim(name, store)
            exported.clear(name)
            done = plan.done[name] = exported.done(name)
            for topic, queues in sorted(store.topics(system=True).items()):
                is_asked = topic in topics if topics else not is_waiting(topic)
                generation = store.lowlevel.topic_generation(topic)
                for queue in queues if is_asked else ():
                    low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
                    whole = StoreSpan(name, topic, queue, low, high, generation)
                    ranges = done.get((exported.name_of(topic), whole.queue_name), [])
                    if ranges:
                        plan.lost += max(low - ranges[-1][1], 0)
                    for start, stop in missing(ranges, low, high):
                        plan.pieces += _cut(whole._replace(start=start, stop=stop), file_rows)
    return plan


def _cut(piece: StoreSpan, rows: int) -> list[StoreSpan]:
    return [
        piece._replace(start=at, stop=min(at + rows, piece.stop))
        for at in range(piece.start, piece.stop, rows)
    ]


def _write_all(spark: Any, folder: Path, plan: _Plan) -> list[dict[str, int]]:
    if not plan.pieces:
        return []
    pieces, roots, run_id = plan.pieces, plan.roots, str(uuid.uuid4())

    def write(number: int) -> list[pa.RecordBatch]:
        piece = pieces[number]
        store = opened(run_id, str(roots[piece.store]))
        if store.lowlevel.topic_generation(piece.topic) == piece.generation:
            done = Exported(folder).write(piece, store, counts_lost=True)
        else:
            done = Written(lost=piece.stop - piece.start)
        return [pa.RecordBatch.from_pylist([{"id": number, **attrs.asdict(done)}], _WRITTEN)]

    count = sum(piece.stop - piece.start for piece in pieces)
    tasks = tasks_for(spark, len(pieces), count, _TASK_ROWS)
    found: list[dict[str, int]] = (
        over(spark, len(pieces), tasks, _WRITTEN, write).toArrow().to_pylist()
    )
    return found


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("export"))
