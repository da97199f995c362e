"""Messages for jobs that write them again: slices of stores, or rows of Parquet files, as frames."""

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock.errors import ConfigError
from penstock_spark.arrow import pa, pq
from penstock_spark.columns import converter, ddl_of, store_columns
from penstock_spark.export.export_folder import EXPORTED, unquoted
from penstock_spark.jobs.progress import parallelism
from penstock_spark.jobs.tasks import Slice, opened, over, refuse_loss

_COLUMNS = (*EXPORTED, "topic")
_TASK_ROWS = 50_000
_BATCH_ROWS = 8192


class Rows(NamedTuple):
    """Rows [start, stop) of a Parquet file."""

    path: str
    start: int
    stop: int


def _tasks(spark: Any, pieces: Sequence[Slice] | Sequence[Rows]) -> int:
    count = sum(piece.stop - piece.start for piece in pieces)
    return max(min(len(pieces), max(parallelism(spark), count // _TASK_ROWS)), 1)


def from_stores(spark: Any, slices: Sequence[Slice], columns: Sequence[str] = _COLUMNS) -> Any:
    """Return the messages of slices as a frame."""
    run_id, pieces = str(uuid.uuid4()), list(slices)

    def read(number: int) -> Iterator[pa.RecordBatch]:
        piece = pieces[number]
        return messages_of(piece, opened(run_id, piece.root), columns)

    return over(spark, len(pieces), _tasks(spark, pieces), ddl_of(columns), read)


def messages_of(
    piece: Slice, store: "penstock.Store", columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice as Spark's columns; missing messages are an error."""
    convert = converter(columns)
    for batch in store.lowlevel.arrow_spans(
        [piece.span], store_columns(columns), rows=_BATCH_ROWS, lost=refuse_loss(piece.root)
    ):
        yield convert(batch, piece.root)


def parquet_files(text: str) -> list[Path]:
    """Return the Parquet files of a folder, sorted by the date in the path, if any, then by name."""
    root = Path(text.removeprefix("file://")).expanduser().absolute()
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
    pairs = (part.partition("=") for part in Path(path).parent.parts)
    return {name: unquoted(value) for name, equals, value in pairs if equals and name}


def parquet_about(path: Path) -> tuple[int, int, pa.Schema]:
    """Return rows, bytes (uncompressed) and schema of a file."""
    try:
        about = pq.read_metadata(path)
        schema = about.schema.to_arrow_schema()
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} is not a valid Parquet file: {error}") from error
    size = sum(about.row_group(n).total_byte_size for n in range(about.num_row_groups))
    return about.num_rows, size, schema


def spark_schema(schema: pa.Schema, path: Path) -> Any:
    """Return Spark's schema for files of a schema, with the partition columns and each row's position."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
    from pyspark.sql import types  # noqa: PLC0415 - as above
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - as above

    try:
        whole = from_arrow_schema(schema)
    except PySparkException as error:
        raise ConfigError(f"{path} has columns that Spark cannot read: {error}") from error
    for name in _in_path(str(path)):
        if name not in schema.names:
            whole = whole.add(name, types.StringType())
    return whole.add("_file", types.LongType()).add("_row", types.LongType())


def from_parquet(spark: Any, parts: Sequence[Rows], schema: Any) -> Any:
    """Return rows of files as a frame of a schema that `spark_schema` gave; `_file` numbers the parts."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    pieces, arrow = list(parts), to_arrow_schema(schema, timezone="UTC")

    def read(number: int) -> Iterator[pa.RecordBatch]:
        return rows_of(pieces[number], number, arrow)

    return over(spark, len(pieces), _tasks(spark, pieces), schema, read)


def rows_of(part: Rows, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file with exactly these columns; a column that the file lacks is null."""
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
        at = first
        for batch in file.iter_batches(_BATCH_ROWS, groups) if groups else ():
            low, high = max(part.start - at, 0), min(part.stop - at, batch.num_rows)
            if low < high:
                places = pa.array(range(at + low, at + high), pa.int64())
                extra = {**given, "_file": number, "_row": places}
                yield _fitted(batch.slice(low, high - low), extra, schema)
            at += batch.num_rows


def _fitted(batch: pa.RecordBatch, extra: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        else:
            value = extra.get(field.name)
            is_array = isinstance(value, pa.Array)
            arrays.append(value if is_array else pa.repeat(pa.scalar(value, field.type), batch.num_rows))  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
