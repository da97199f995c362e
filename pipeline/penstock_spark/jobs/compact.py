"""The job `compact`: the latest message of each key of a topic, into a new store, in the order they were stored.

Keys are read first, without bodies; then the messages that are kept, with bodies. The range of the source is
determined when the job begins (see `jobs.messages`), so a killed job that is run again reads the same range.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

import penstock
from penstock.errors import ConfigError
from penstock_spark.arrow import pa, pc
from penstock_spark.jobs.messages import (
    Plan,
    Transform,
    app_of,
    changed,
    check_target,
    from_stores,
    ordered,
    write_batch,
)
from penstock_spark.jobs.tasks import (
    OnProgress,
    Report,
    ignore,
    local_folder,
    one_store,
    over_slices,
    parallelism,
    refuse_loss,
    slices_of,
    still_there,
    watched,
)
from penstock_spark.stores import StoreSpan

_ROWS = 100_000
_KEYS = pa.schema([("key", pa.string()), ("at", pa.int64()), ("size", pa.int32())])


@attrs.frozen(kw_only=True)
class CompactReport(Report):
    """The result of a compaction.

    Attributes:
        source: the store that was read.
        target: the new store.
        topic: the topic.
        read: messages that were read.
        kept: messages in the new store, with and without a key.
        keys: number of different keys.
        deleted: keys that were dropped since their latest message has no body.
        keyless: messages without a key.
        lost: messages that retention deleted after the job began, before they were read.
    """

    source: str
    target: str
    topic: str
    read: int
    kept: int
    keys: int
    deleted: int
    keyless: int
    lost: int


def run(
    spark: Any,
    source: str,
    target: str,
    topic: str,
    *,
    skip_lost: bool = False,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore,
) -> CompactReport:
    """Write the latest message of each key into a new store, and the messages that have no key.

    A latest message with an empty body deletes its key.

    Args:
        spark: a session, classic or over Spark Connect.
        source: the store.
        target: a new folder.
        topic: the topic.
        skip_lost: count messages that retention deleted after the job began, instead of raising `DataLossError`.
        options: further options of the sink, as `partitions`.
        on_progress: called with the numbers of tasks done and of all tasks.
    """
    began = time.monotonic()
    root, folder = one_store(source), local_folder(target, "the new store")
    given = dict(options or {})
    plan = _planned(root, folder, topic, {"source": str(root), "topic": topic, "options": given})
    # A batch that is already written is complete, so lost source messages no longer matter.
    skips = skip_lost or plan.done > 0
    slices, lost = still_there([StoreSpan(*part) for part in plan.batches], skips=skips)
    with watched(spark, "compact", on_progress):
        kept, counts = _latest(spark, slices)
        if plan.done == 0:
            frame = from_stores(spark, slices).join(kept, "logOffset", "left_semi")
            rows = ordered(changed(frame, Transform(), given), counts["kept"])
            write_batch(rows, folder, plan.app, 0, given)
            plan.note(1)
    return CompactReport(
        source=str(root), target=str(folder), topic=topic, lost=lost,
        seconds=time.monotonic() - began, **counts,
    )  # fmt: skip


def _planned(root: Path, folder: Path, topic: str, about: dict[str, Any]) -> Plan:
    """Return the ranges to read: those of now, or those of the first run of this job."""
    check_target(folder, [root])
    plan = Plan(folder, app_of("compact", about))
    if not plan.load(about):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} already exists: give a new folder for the compacted store")
        plan.save(about, [list(each) for each in slices_of([root], [topic], _ROWS)])
    return plan


def _latest(spark: Any, slices: Sequence[StoreSpan]) -> tuple[Any, dict[str, int]]:
    """Return the log offsets of the messages to keep, and the counts for the report."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    tasks = max(min(len(slices), parallelism(spark)), 1)
    found = over_slices(spark, slices, tasks, _KEYS, keys_of)
    has_key = f.col("key").isNotNull() & (f.col("key") != "")
    latest = found.where(has_key).groupBy("key").agg(f.max(f.struct("at", "size")).alias("last"))
    latest = latest.select(
        f.col("last.at").alias("logOffset"), (f.col("last.size") == 0).alias("gone")
    )
    others = found.where(~has_key).select(f.col("at").alias("logOffset"))
    row = latest.agg(f.count("*").alias("keys"), f.count_if("gone").alias("deleted")).first()
    counts = {
        "read": sum(each.stop - each.start for each in slices), "keys": row["keys"],
        "deleted": row["deleted"], "keyless": others.count(),
    }  # fmt: skip
    counts["kept"] = counts["keys"] - counts["deleted"] + counts["keyless"]
    return latest.where(~f.col("gone")).select("logOffset").unionAll(others), counts


def keys_of(piece: StoreSpan, store: "penstock.Store") -> Iterator[pa.RecordBatch]:
    """Yield key, log offset and size of the messages of one slice; missing messages are an error."""
    for batch in store.lowlevel.arrow_spans(
        [piece.span], ["keys", "log_offset", "body_size"], verify=False,
        lost=refuse_loss(piece.store),
    ):  # fmt: skip
        yield pa.RecordBatch.from_arrays(
            [pc.binary_join(batch.column(0), " "), *batch.columns[1:]], schema=_KEYS
        )


if __name__ == "__main__":
    from penstock_spark.cli import main

    sys.exit(main("compact"))
