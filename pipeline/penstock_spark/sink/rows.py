"""A task's part: Spark's columns become those of a store, are encoded, and staged. Does not import pyspark.

`value` is the body, `key` is KEYS, `partition` the queue, `headers` are properties, `timestamp` is the time the
message was created. If a row names no queue, a partitioner selects one: by Java's hash of the key, as RocketMQ's
`SelectMessageQueueByHash` does, round-robin, or one queue per task. There is no Python object per row.

Names of staged files are unique, so two attempts of a task never share a file, even if one still runs after its job has
failed. A file has no effect until a decision names it; files that no decision names are deleted by age.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, MessageError, StorageError, TopicError
from penstock.files import Files
from penstock.format.names import FORBIDDEN_TOPICS
from penstock.staged import EncodedBatch, Encoder, Encoding, StagedWriter, key_hashes
from penstock_spark.arrow import pa, pc
from penstock_spark.sink.commit import SUFFIX, Part
from penstock_spark.sink.options import SinkOptions

Int64s = npt.NDArray[np.int64]
_TEXT = ("string", "binary")
_WHOLE = ("int", "bigint", "smallint", "tinyint")
_PAIRS = ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>",
    "map<string,string>")  # fmt: skip
# Column: what Spark may have it as.
COLUMNS: dict[str, Sequence[str]] = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "tags": ("string",),
    "partition": _WHOLE,
    "headers": _PAIRS,
    "timestamp": ("timestamp",),
}
# A piece is encoded, checked and appended as one: large enough to be quick, small enough for caches.
PIECE_BYTES = 8 << 20
PIECE_ROWS = 65_536
# Characters that are replaced in the names of staged files.
_UNFIT = re.compile(r"[^A-Za-z0-9-]+")


def check_columns(given: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Raise `ConfigError` for columns, given as (name, Spark's type), that cannot be written."""
    names = [name.lower() for name, _ in given]
    for name, kind in given:
        kinds = COLUMNS.get(name.lower())
        if kinds is None:
            raise ConfigError(
                f"the sink has no column {name!r}; its columns are {', '.join(COLUMNS)}: drop the column, or rename it"
            )
        if kind.lower() not in kinds:
            raise ConfigError(
                f"column {name!r} is {kind}; it must be {' or '.join(kinds)}: cast it"
            )
    for name in COLUMNS:
        if names.count(name) > 1:
            raise ConfigError(f"column {name!r} occurs twice")
    if "value" not in names:
        raise ConfigError("the sink needs a column 'value', the body of each message")
    if "topic" not in names and topic is None:
        raise ConfigError("the sink needs a topic: give the option 'topic', or a column 'topic'")


@attrs.define(eq=False)
class Router:
    """Returns the queue and the shard of each row of one task. Not thread-safe."""

    task: int
    partitions: int
    partitioner: str
    shards: int
    _turn: int = 0

    @classmethod
    def of(cls, options: SinkOptions, shards: int, task: int) -> "Router":
        """Return the router of a task."""
        # Tasks begin with different queues, so that many small ones do not all fill the first.
        return cls(task, options.partitions, options.partitioner, shards, task % options.partitions)

    def queues(self, hashes: Int64s | None, has_key: npt.NDArray[np.bool_], count: int) -> Int64s:
        """Return a queue for each row: by key if the partitioner is `key` and the row has one, else round-robin."""
        if self.partitioner == "task":
            return np.full(count, self.task % self.partitions, np.int64)
        turns = (self._turn + np.arange(count, dtype=np.int64)) % self.partitions
        self._turn = (self._turn + count) % self.partitions
        if self.partitioner == "round-robin" or hashes is None:
            return turns
        return np.where(has_key, np.abs(hashes) % self.partitions, turns)

    def shard_rows(
        self, hashes: Int64s | None, has_key: npt.NDArray[np.bool_], count: int
    ) -> Int64s:
        """Return the shard of each row: by its key, or the task's shard if it has none."""
        own = np.full(count, self.task % self.shards, np.int64)
        if hashes is None or self.shards == 1:
            return own
        # Not the remainder that the queue is: else a shard would have only some of the queues.
        return np.where(has_key, np.abs(hashes) // self.partitions % self.shards, own)


def tables(
    batch: pa.RecordBatch, options: SinkOptions, router: Router, now_ms: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (shard, rows as `put_arrow` takes them) for one of Spark's batches, in pieces that keep the order."""
    columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
    count = batch.num_rows
    if columns["value"].null_count:
        raise MessageError(
            "column 'value' has nulls; every message needs a body, which may be empty"
        )
    key = _text(columns.get("key"), "key")
    hashes = key_hashes(key) if key is not None else None
    has_key = np.zeros(count, np.bool_)
    if key is not None:
        has_key = pc.fill_null(pc.not_equal(key, ""), fill_value=False).to_numpy(
            zero_copy_only=False
        )
    picked = router.queues(hashes, has_key, count)
    shards = router.shard_rows(hashes, has_key, count)
    table = pa.table(_columns(columns, options, key, picked, now_ms))
    for start, stop in _pieces(table.column("body"), count):
        piece = table.slice(start, stop - start)
        its = shards[start:stop]
        for shard in np.unique(its).tolist():
            yield shard, piece if (its == shard).all() else piece.filter(pa.array(its == shard))


def _columns(
    given: dict[str, pa.Array],
    options: SinkOptions,
    key: pa.Array | None,
    picked: Int64s,
    now_ms: int,
) -> dict[str, pa.Array]:
    made = {"topic": _topic(given.get("topic"), options.topic, len(picked)), "body": given["value"]}
    queue = given.get("partition")
    made["queue"] = (
        pa.array(picked) if queue is None else pc.coalesce(queue.cast(pa.int64()), pa.array(picked))
    )
    if key is not None:
        made["keys"] = key
    if "tags" in given:
        made["tag"] = given["tags"]
    if "headers" in given:
        made["properties"] = _properties(given["headers"])
    if "timestamp" in given:
        born = given["timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False)
        made["born_time"] = pc.fill_null(born.cast(pa.int64()), now_ms)
    return made


def _topic(column: pa.Array | None, topic: str | None, count: int) -> pa.Array:
    if topic is not None:
        return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [topic])
    assert column is not None
    if column.null_count:
        raise MessageError("column 'topic' has nulls; every message needs a topic")
    return column


def _text(column: pa.Array | None, name: str) -> pa.Array | None:
    """Return a column as text; bytes that are not UTF-8 are refused."""
    if column is None or pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise MessageError(
            f"column {name!r} has a value that is not UTF-8, but the format stores text here: encode it, "
            f"as with base64 or hex ({error})"
        ) from error


def _properties(column: pa.Array) -> pa.Array:
    """Return headers as a map of texts; null becomes an empty map."""
    if pa.types.is_map(column.type):
        return column
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    pairs = pc.list_flatten(column)
    if pairs.null_count:
        raise MessageError("column 'headers' has a null among its headers")
    names, values = pairs.flatten()
    if names.null_count or values.null_count:
        raise MessageError("column 'headers' has a null name or value: remove that header")
    bounds = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.MapArray.from_arrays(bounds, _text(names, "headers"), _text(values, "headers"))


def _pieces(body: pa.ChunkedArray, count: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of each piece."""
    if count == 0:
        return
    ends = np.cumsum(pc.binary_length(body).to_numpy(zero_copy_only=False).astype(np.int64))
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + PIECE_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + PIECE_ROWS, count)
        yield start, stop
        start = stop


# --- the staged file


def staged_name(app: str, batch: str, task: int, attempt: int) -> str:
    """Return a unique name that identifies the task."""
    source = _UNFIT.sub("-", app)[:40].strip("-") or "app"
    return (
        f"{source}.{_UNFIT.sub('-', batch) or 'x'}.{task:06d}.{attempt}.{uuid.uuid4().hex}{SUFFIX}"
    )


class Stager:
    """Writes the staged file of one task; creates none if there are no rows. Not thread-safe."""

    def __init__(
        self, files: Files, folder: Path, name: str, task: int, encoding: Encoding
    ) -> None:
        self._files = files
        self._path = folder / name
        self._task = task
        self._encoder = Encoder(encoding)
        self._writer: StagedWriter | None = None
        self._rows: dict[int, int] = {}

    def add(self, table: pa.Table, shard: int) -> None:
        """Encode rows and stage them for a shard."""
        batch = self._encoder.encode(table)
        if len(batch):
            self.put(batch, shard)

    def put(self, batch: EncodedBatch, shard: int) -> None:
        """Stage rows that are encoded already; raises `TopicError` for a topic that RocketMQ reserves."""
        for cursor in batch.cursors:
            if cursor.topic in FORBIDDEN_TOPICS:
                raise TopicError(
                    cursor.topic,
                    "RocketMQ reserves that name for its own messages; the rows are not written",
                )
        if self._writer is None:
            self._writer = self._begin()
        self._writer.add(batch, shard)
        self._rows[shard] = self._rows.get(shard, 0) + len(batch)

    def _begin(self) -> StagedWriter:
        try:
            return self._encoder.writer(self._files, self._path)
        except FileNotFoundError as error:
            raise StorageError(
                f"there is no folder {self._path.parent} where this task runs: driver and executors must see the "
                f"same files under the same path"
            ) from error

    def finish(self) -> Part | None:
        """Make the file durable; return its description for the commit, None if there are no rows."""
        if self._writer is None:
            return None
        self._writer.finish()
        return Part(self._path.name, self._task, tuple(sorted(self._rows.items())))

    def discard(self) -> None:
        """Close and delete the file."""
        if self._writer is not None:
            self._writer.discard()
