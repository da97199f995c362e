"""Messages that a job writes again, from stores or Parquet files: frames, changes, and a plan to write each batch once.

The plan is stored with the target store::

    <target>/penstock/spark/<app>.json     {"format": 1, "about": {...}, "batches": [...]}
    <target>/penstock/spark/<app>.done     how many of them are written

Batch n is written with `txnAppId` = app and `txnVersion` = n, so the sink writes it once, however often it is tried.
This requires that a plan never changes: a job that is run again uses the plan of its first run, even if the source
has new messages. `done` only saves trying the batches that are written.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

import penstock
from penstock.errors import ConfigError, StorageError
from penstock.files import Files
from penstock_spark.arrow import converter, ddl_of, pa, pq, store_columns
from penstock_spark.export_folder import EXPORTED, unquoted, whole_topic
from penstock_spark.jobs.tasks import is_within, over, over_slices, refuse_loss, tasks_for
from penstock_spark.stores import StoreSpan, is_dataset, keep_folder, shards_of, without_scheme

_COLUMNS = (*EXPORTED, "topic")
_TASK_ROWS = 50_000
_BATCH_ROWS = 8192
# Up to here one task writes a batch: a sort across tasks would read it twice.
_ONE_TASK_ROWS = 200_000
# Columns for the order only: a store's, or a Parquet file's.
_OF_STORE = "_log_offset"
_OF_FILES = ("_file", "_row")
# Properties that the sink writes by itself, or that are the store's own.
_OWN_PROPERTIES = ("TAGS", "KEYS", "WAIT", "DELAY", "UNIQ_KEY", "CLUSTER", "__CRC32#")

FORMAT = 1
_APP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A plan of a million batches is some 100 MB.
_BYTES_MAX = 1 << 30


# --- where messages are read from


class Rows(NamedTuple):
    """Rows [start, stop) of a Parquet file."""

    path: str
    start: int
    stop: int


def _tasks(spark: Any, pieces: Sequence[StoreSpan] | Sequence[Rows]) -> int:
    rows = sum(piece.stop - piece.start for piece in pieces)
    return tasks_for(spark, len(pieces), rows, _TASK_ROWS)


def from_stores(spark: Any, slices: Sequence[StoreSpan]) -> Any:
    """Return the messages of slices as a frame."""
    read = functools.partial(messages_of, columns=_COLUMNS)
    return over_slices(spark, slices, _tasks(spark, slices), ddl_of(_COLUMNS), read)


def messages_of(
    piece: StoreSpan, store: "penstock.Store", columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice as Spark's columns; missing messages are an error."""
    convert = converter(columns)
    for batch in store.lowlevel.arrow_spans(
        [piece.span], store_columns(columns), rows=_BATCH_ROWS, lost=refuse_loss(piece.store)
    ):
        yield convert(batch, piece.store)


def parquet_files(text: str) -> list[Path]:
    """Return the Parquet files of a folder, sorted by the date in the path, if any, then by name."""
    root = Path(without_scheme(text)).expanduser().absolute()
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ConfigError(f"{root} is neither a store nor a folder or file of Parquet")
    files = [
        path for path in root.rglob("*.parquet")
        if not any(part[0] in "._" for part in path.relative_to(root).parts)
    ]  # fmt: skip
    if not files:
        raise ConfigError(f"{root} is not a store, and has no Parquet files")
    return sorted(files, key=lambda path: (_in_path(str(path)).get("date", ""), str(path)))


def _in_path(path: str) -> dict[str, str]:
    """Return the partition columns in the folder names, in Hive's form."""
    found = {}
    for folder in reversed(Path(path).parents):
        name, equals, value = folder.name.partition("=")
        if equals and name:
            found[name] = unquoted(value)
            if name == "topic":
                found[name] = whole_topic(folder) or found[name]
    return found


def parquet_about(path: Path) -> tuple[int, pa.Schema]:
    """Return rows and schema of a file."""
    try:
        about = pq.read_metadata(path)
        schema = about.schema.to_arrow_schema()
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} is not a valid Parquet file: {error}") from error
    return about.num_rows, schema


def unified(schemas: Mapping[Path, pa.Schema]) -> pa.Schema:
    """Return a schema with the columns of all files, in their path too; raise `ConfigError` where two disagree."""
    whole = last = pa.schema([])
    in_paths: dict[str, None] = {}
    for path, schema in schemas.items():
        in_paths |= dict.fromkeys(_in_path(str(path)))
        if schema.equals(last):
            continue
        last = schema
        try:
            whole = pa.unify_schemas([whole, schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ConfigError(
                f"{path} has other columns than the files before it: {error}. Replay it by itself"
            ) from error
    for name in in_paths:
        if name not in whole.names:
            whole = whole.append(pa.field(name, pa.string()))
    return whole


def spark_schema(schema: pa.Schema) -> Any:
    """Return Spark's schema for files of a schema, with each row's position."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
    from pyspark.sql import types  # noqa: PLC0415 - as above
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - as above

    try:
        whole = from_arrow_schema(schema)
    except PySparkException as error:
        raise ConfigError(f"the files have columns that Spark cannot read: {error}") from error
    return whole.add("_file", types.LongType()).add("_row", types.LongType())


def from_parquet(spark: Any, parts: Sequence[Rows], schema: Any) -> Any:
    """Return rows of files as a frame of a schema that `spark_schema` gave; `_file` numbers the parts."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    pieces, arrow = list(parts), to_arrow_schema(schema, timezone="UTC")

    def read(number: int) -> Iterator[pa.RecordBatch]:
        return rows_of(pieces[number], number, arrow)

    return over(spark, len(pieces), _tasks(spark, pieces), schema, read)


def rows_of(part: Rows, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file with exactly these columns; a column that the file lacks is null.

    Raises:
        StorageError: the file has fewer rows, a column has another type, or it is corrupt.
    """
    try:
        yield from _rows_of(part, number, schema)
    except pa.ArrowException as error:
        raise StorageError(f"{part.path} is not a valid Parquet file: {error}") from error


def _rows_of(part: Rows, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    given = _in_path(part.path)
    with pq.ParquetFile(part.path) as file:
        at, groups = 0, []
        first = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if at + count <= part.start:
                first = at + count
            elif at < part.stop:
                groups.append(group)
            at += count
        if at < part.stop:
            raise StorageError(
                f"{part.path} has {at} rows, and had {part.stop} or more when the replay was planned: restore it, or "
                f"start a new replay with another app"
            )
        at = first
        for batch in file.iter_batches(_BATCH_ROWS, groups) if groups else ():
            low, high = max(part.start - at, 0), min(part.stop - at, batch.num_rows)
            if low < high:
                places = pa.array(range(at + low, at + high), pa.int64())
                extra = {**given, "_file": number, "_row": places}
                yield _fitted(batch.slice(low, high - low), extra, schema, part.path)
            at += batch.num_rows


def _fitted(
    batch: pa.RecordBatch, extra: dict[str, Any], schema: pa.Schema, path: str
) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        value = extra.get(field.name)
        if field.name in batch.schema.names:
            value = batch.column(field.name)
        elif not isinstance(value, pa.Array):
            value = pa.repeat(pa.scalar(value), batch.num_rows)
        try:
            arrays.append(value.cast(field.type))
        except pa.ArrowException as error:
            raise StorageError(
                f"column {field.name!r} of {path} is {value.type}, and cannot be read as {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- how messages are changed


@attrs.frozen(kw_only=True)
class Transform:
    """The changes to messages; every attribute is optional.

    Attributes:
        topics: only these topics.
        tags: only these tags.
        where: an SQL condition over the source's columns.
        topic: the topic for all messages; if None, each keeps its own.
        key: an SQL expression for the key.
        tag: an SQL expression for the tag.
        partition: an SQL expression for the queue.
    """

    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    where: str | None = None
    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    partition: str | None = None


def changed(frame: Any, change: Transform, options: Mapping[str, str]) -> Any:
    """Return a frame with the sink's columns and those for the order; raise `ConfigError` for invalid expressions."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    names = frame.columns
    if "value" not in names:
        raise ConfigError(f"the source has no column 'value'; it has: {', '.join(names)}")
    if "topic" not in names and change.topic is None:
        raise ConfigError("the source has no column 'topic': give the topic")
    for column, wanted in (("topic", change.topics), ("tags", change.tags)):
        if wanted and column not in names:
            raise ConfigError(f"the source has no column {column!r} to filter by")
        if wanted:
            frame = frame.where(f.col(column).isin(*wanted))
    try:
        if change.where is not None:
            frame = frame.where(change.where)
        made = frame.select(*_columns(frame, change, options))
        # Over Spark Connect nothing is looked at before this.
        _ = made.columns
    except (AnalysisException, ParseException) as error:
        text = str(error).strip().splitlines()[0]
        raise ConfigError(f"an expression of the replay is not valid: {text}") from error
    return made


def _columns(frame: Any, change: Transform, options: Mapping[str, str]) -> list[Any]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    names = set(frame.columns)
    made = {"value": f.col("value").cast("binary")}
    made["topic"] = f.lit(change.topic) if change.topic is not None else f.col("topic")
    # How many queues there are, and who picks one, may be the sink's matter.
    is_picked = bool({"partitions", "partitioner"} & options.keys())
    for name, expression, kind, is_kept in (
        ("key", change.key, "string", True), ("tags", change.tag, "string", True),
        ("partition", change.partition, "int", not is_picked),
    ):  # fmt: skip
        if expression is not None:
            made[name] = f.expr(expression).cast(kind)
        elif name in names and is_kept:
            made[name] = f.col(name).cast(kind)
    if "headers" in names:
        made["headers"] = f.col("headers")
    elif "properties" in names:
        others = f.map_filter("properties", lambda name, _: ~name.isin(*_OWN_PROPERTIES))
        made["headers"] = f.transform(
            f.map_entries(others),
            lambda pair: f.struct(
                pair["key"].alias("key"), pair["value"].cast("binary").alias("value")
            ),
        )
    born = next((name for name in ("bornTimestamp", "timestamp") if name in names), None)
    if born is not None:
        made["timestamp"] = f.col(born).cast("timestamp")
    for name, source in ((_OF_STORE, "logOffset"), *((name, name) for name in _OF_FILES)):
        if source in names:
            made[name] = f.col(source)
    return [column.alias(name) for name, column in made.items()]


def ordered(frame: Any, rows: int) -> Any:
    """Return about so many rows in the order of storing, or of their files; the sink appends them in it."""
    order = [_OF_STORE] if _OF_STORE in frame.columns else list(_OF_FILES)
    sort = frame.repartition(1).sortWithinPartitions if rows <= _ONE_TASK_ROWS else frame.orderBy
    return sort(*order).drop(_OF_STORE, *_OF_FILES)


# --- each batch once


def write_batch(
    frame: Any, target: Path, app: str, version: int, options: Mapping[str, str]
) -> None:
    """Append a frame's rows to a store; do nothing if the batch is already written."""
    (
        frame.write.format("penstock")
        .mode("append")
        .options(**options)
        .option("txnAppId", app)
        .option("txnVersion", str(version))
        .save(str(target))
    )


def app_of(job: str, about: dict[str, Any]) -> str:
    """Return the default name of a job, which is the same for equal arguments."""
    text = json.dumps(about, sort_keys=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def check_app(app: str) -> str:
    """Return a given name; raise `ConfigError` if it cannot be a file name."""
    if not _APP.fullmatch(app):
        raise ConfigError(f"app is {app!r}; it must be letters, digits, '.', '_', '-', at most 100")
    return app


class Plan:
    """The batches of one job into one target.

    Attributes:
        app: the name under which it is stored.
        target: the store's folder.
        batches: plain values that describe one batch each.
        done: how many are written.
    """

    def __init__(self, target: Path, app: str, files: Files | None = None) -> None:
        folder = target / "penstock" / "spark"
        self._files = files or Files()
        self._path = folder / f"{app}.json"
        self._done_path = folder / f"{app}.done"
        self.app = app
        self.target = target
        self.batches: list[Any] = []
        self.done = 0

    def load(self, about: dict[str, Any]) -> bool:
        """Load the existing plan and return whether there is one; raise if it is another job's."""
        if not self._files.exists(self._path):
            return False
        try:
            found = json.loads(self._files.read_whole(self._path, _BYTES_MAX))
            version, there, self.batches = found["format"], found["about"], found["batches"]
            is_there = self._files.exists(self._done_path)
            text = self._files.read_whole(self._done_path) if is_there else b"0"
            self.done = int(text)
            # Batches are written by it now: it must not be another one after a power cut, had its writer been
            # killed before the name was durable.
            self._files.sync_folder(self._path.parent)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StorageError(
                f"{self._path} is not a valid plan ({error!r}): give another app"
            ) from error
        if version != FORMAT:
            raise StorageError(f"{self._path} has format {version!r}; this Penstock reads {FORMAT}")
        if there != about:
            odd = sorted(name for name in about if about[name] != there.get(name))
            raise ConfigError(
                f"app {self.app!r} has written to this target with another {', '.join(odd)}; nothing was "
                f"written. Give the same values to continue that job, or another app to start a new one"
            )
        return True

    def save(self, about: dict[str, Any], batches: list[Any]) -> None:
        """Store a new plan; call it before the first batch is written."""
        self.batches, self.done = batches, 0
        keep_folder(self._files, self._path.parent, self.target)
        text = json.dumps({"format": FORMAT, "about": about, "batches": batches})
        self._files.write_whole(self._path, text.encode())

    def note(self, done: int) -> None:
        """Note that so many batches are written."""
        self.done = done
        self._files.write_whole(self._done_path, str(done).encode())


def check_target(target: Path, source: list[Path]) -> None:
    """Refuse a target that is or shares a store with the source, or that is neither a store, a dataset nor empty."""
    for store in shards_of(target) if is_dataset(target) else [target]:
        if any(is_within(store, root) for root in source):
            raise ConfigError(f"{store} is both source and target: give another target")
    if not target.exists():
        return
    is_known = (target / "commitlog").is_dir() or is_dataset(target)
    names = {path.name for path in target.iterdir()} if target.is_dir() else {""}
    if not is_known and names - {"penstock"}:
        raise ConfigError(f"{target} is neither a store nor empty: give a store, or a new folder")
