"""The sink as Spark sees it: writers that are pickled to tasks and the driver's commit, and their target.

Spark builds a writer when a query starts, runs `write` in each task, and `commit` or `abort` in a process of
its own; only the messages travel from one to the other. The stores are opened or created when a query starts.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import penstock
from penstock.errors import ConfigError, CorruptionError, StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.staged import Encoding, encoding_for
from penstock_spark.arrow import pa
from penstock_spark.sink.commit import FOLDER, THREADS, Part, Patience, SinkCommitter
from penstock_spark.sink.options import SinkOptions, parse_options
from penstock_spark.sink.rows import Router, Stager, check_columns, staged_name, tables
from penstock_spark.stores import (
    is_dataset,
    is_made,
    is_store,
    lost,
    make_dataset,
    shards_of,
)

logger = get_logger(__name__)


@attrs.frozen(kw_only=True)
class Target:
    """A root, its stores, and their settings. It has no open files, since it is pickled."""

    options: SinkOptions
    shards: tuple[Path, ...]
    encoding: Encoding

    def committer(self, files: Files | None = None) -> SinkCommitter:
        """Return the object that commits batches to the target."""
        patience = Patience(timeout_s=self.options.lock_timeout_s)
        return SinkCommitter(
            self.options.root, self.shards, partial(open_store, self.options, files),
            files=files or Files(), patience=patience, threads=THREADS,
        )  # fmt: skip


def open_store(options: SinkOptions, files: Files | None, path: Path) -> penstock.Store:
    """Open one of the stores for writing."""
    return penstock.open(path, files=files, **options.settings)


def find_target(options: SinkOptions) -> Target:
    """Return the target; its stores and folders are created if they do not exist."""
    shards = _shards(options)
    patience = Patience(timeout_s=options.lock_timeout_s)
    was_made = is_made(options.root)
    for shard in shards:
        if not is_store(shard):
            if was_made:
                raise lost(shard, options.root)
            patience.until(partial(open_store, options, None, shard)).close()
    # A record is made to fit into each of them, as they are.
    encoding = encoding_for(*shards, **options.settings)
    found = Target(options=options, shards=shards, encoding=encoding)
    found.committer().prepare()
    return found


def _shards(options: SinkOptions) -> tuple[Path, ...]:
    root = options.root
    if is_dataset(root):
        return tuple(make_dataset(root, options.shards) if options.shards else shards_of(root))
    if options.shards <= 1:
        return (root,)
    if (root / "commitlog").exists():
        raise ConfigError(
            f"{root} is a store, and cannot become a dataset of {options.shards} shards: write to a new folder, "
            f"or leave shards out"
        )
    if root.exists() and any(root.iterdir()):
        raise ConfigError(f"{root} is neither a dataset nor empty: write to a new folder")
    return tuple(make_dataset(root, options.shards))


@attrs.frozen
class Staged(WriterCommitMessage):
    """The message of a task to the commit: the application, and the staged file if the task had rows."""

    app: str
    part: Part | None


def make_writer(
    options: dict[str, str], schema: StructType, *, overwrite: bool
) -> "PenstockWriter":
    """Return the writer of a batch query, after all checks that are possible before it starts."""
    return PenstockWriter(_target(options, schema, overwrite=overwrite, is_stream=False))


def make_stream_writer(
    options: dict[str, str], schema: StructType, *, overwrite: bool
) -> "PenstockStreamWriter":
    """Return the writer of a stream."""
    return PenstockStreamWriter(_target(options, schema, overwrite=overwrite, is_stream=True))


def _target(
    options: dict[str, str], schema: StructType, *, overwrite: bool, is_stream: bool
) -> Target:
    if overwrite and is_stream:
        raise ConfigError(
            "output mode 'complete' replaces earlier output, which a log cannot do: use 'append' or 'update'"
        )
    if overwrite:
        raise ConfigError(
            "mode 'overwrite' replaces earlier output, which a log cannot do: use 'append', also for a new folder"
        )
    parsed = parse_options(options, is_stream=is_stream)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_columns(fields, parsed.topic)
    return find_target(parsed)


class Writing:
    """The common part of both writers. It has no open files, since it is pickled."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def files(self, _step: str) -> Files | None:
        """Return the file system for a "task" or a "commit"; None for the default one."""
        return None

    def stage(self, iterator: Iterator[pa.RecordBatch], app: str, batch: str) -> Staged:
        """Stage the rows of a task; returns the message for the commit."""
        context = TaskContext.get()
        assert context is not None
        task, options = context.partitionId(), self.target.options
        name = staged_name(app, batch, task, context.attemptNumber())
        folder = options.root / FOLDER / "staging"
        stager = Stager(self.files("task") or Files(), folder, name, task, self.target.encoding)
        router = Router.of(options, len(self.target.shards), task)
        try:
            for rows in iterator:
                for shard, table in tables(rows, options, router, time.time_ns() // 1_000_000):
                    stager.add(table, shard)
            return Staged(app, stager.finish())
        except BaseException:
            stager.discard()
            raise

    def put(self, messages: Sequence[Any], app: str, batch: int, **kind: bool) -> None:
        """Commit the staged files of the tasks, then delete old staged files that no commit will use."""
        committer = self.committer()
        committer.commit(app, batch, _parts(messages), **kind)
        try:
            committer.collect(time.time_ns() - int(self.target.options.retention_s * 1e9))
        except (OSError, CorruptionError) as error:
            # The batch is in, and must not fail for what others have left.
            logger.warning(
                "old staged files of %s could not be deleted: %s", self.target.options.root, error
            )

    def committer(self) -> SinkCommitter:
        """Return what commits."""
        return self.target.committer(self.files("commit"))


def _parts(messages: Sequence[Any]) -> list[Part]:
    return [m.part for m in messages if isinstance(m, Staged) and m.part is not None]


class PenstockWriter(Writing, DataSourceArrowWriter):
    """Writes a frame, once for each (txnAppId, txnVersion)."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one task's rows."""
        options = self.target.options
        return self.stage(iterator, str(options.app), str(options.version or 0))

    def commit(self, messages: list[Any]) -> None:
        """Append the frame to the store."""
        options = self.target.options
        self.put(messages, str(options.app), options.version or 0, is_alone=options.version is None)

    def abort(self, messages: list[Any]) -> None:
        """Delete the staged files, unless the batch is decided."""
        self.committer().abandon(_parts(messages))


class PenstockStreamWriter(Writing, DataSourceStreamArrowWriter):
    """Writes a stream, each batch exactly once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one task's rows."""
        context = TaskContext.get()
        assert context is not None
        app = self.target.options.app or context.getLocalProperty("sql.streaming.queryId")
        if not app:
            raise StorageError(
                "Spark did not say which query this is, so a repeated batch could not be detected; nothing was "
                "written. Set txnAppId"
            )
        return self.stage(iterator, app, context.getLocalProperty("streaming.sql.batchId") or "x")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Append a batch, unless the store has it already."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            self.put(staged, staged[0].app, batchId, is_stream=True)
        else:
            # Without a task nothing says which query this is; and there is nothing to write.
            self.committer().finish_pending()

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete the staged files, unless the batch is decided. Spark calls it also when a commit failed."""
        self.committer().abandon(_parts(messages))
