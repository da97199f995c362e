"""Messages as Parquet and Arrow files: columns with the names of `rows.COLUMNS`, except for times.

`store_time` and `born_time` are timestamps in milliseconds and UTC. `body` is binary, `properties` a map of strings
without TAGS and KEYS, `tag` and `keys` are null if there are none, `properties_text` is null except where it is needed.

Only plain types are used, so any reader of these formats can read them. A file that is read is not trusted: the
buffers of every batch are validated completely before a value is read from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from penstock.errors import ImportFileError, MissingExtraError
from penstock_tools.exchange.rows import COLUMNS, ColumnError, MessageRow
from penstock_tools.exchange.text_files import (
    ColumnNames,
    FileRow,
    check_names,
    joined_keys,
    json_of,
)

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtraError(
        "pyarrow", "arrow", "reading and writing Parquet and Arrow files"
    ) from error

_TIMESTAMP = pa.timestamp("ms", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())
_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queue": pa.int32(),
    "queue_offset": pa.int64(),
    "log_offset": pa.int64(),
    "message_id": pa.string(),
    "store_time_ms": _TIMESTAMP,
    "store_host": pa.string(),
    "born_time_ms": _TIMESTAMP,
    "born_host": pa.string(),
    "tag": pa.string(),
    "keys": pa.string(),
    "properties": _MAP,
    "properties_text": pa.binary(),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "reconsume_times": pa.int32(),
    "prepared_offset": pa.int64(),
    "size": pa.int32(),
    "body": pa.binary(),
}
assert tuple(_TYPES) == COLUMNS
_NAMES = {name: name.removesuffix("_ms") for name in COLUMNS}
SCHEMA = pa.schema([(_NAMES[name], kind) for name, kind in _TYPES.items()])
# Names of columns that `to_arrow` and the Spark jobs write as well; they follow from others.
_DERIVED = {"body_size"}
_FIELDS = {name: field for field, name in _NAMES.items()} | {name: name for name in COLUMNS}
_KNOWN = frozenset({*_FIELDS, *_DERIVED})
_READ_ROWS = 2000
# A row group of Parquet is in memory until it is written.
_GROUP_BYTES, _GROUP_ROWS = 16 << 20, 65_536
# Raised for example by a time out of Python's range.
_NO_VALUE = (pa.ArrowException, ValueError, OverflowError)
_ARROW_MAGIC = b"ARROW1"


class _Grouped:
    """Collects rows to batches of a bounded size. Not thread-safe."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write some rows."""
        batch = batch_of(rows)
        if self._batches and self._bytes + batch.nbytes > _GROUP_BYTES:
            self._flush()
        self._batches.append(batch)
        self._rows += len(rows)
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, SCHEMA)
            self._batches, self._rows, self._bytes = [], 0, 0
            self._put(table)

    def _put(self, table: pa.Table) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Write what ends the file."""
        self._flush()


class ParquetWriter(_Grouped):
    """Writes rows as Parquet, compressed with zstd. Not thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._writer = pq.ParquetWriter(file, SCHEMA, compression="zstd")

    def _put(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=_GROUP_ROWS)

    def finish(self) -> None:
        """Write the footer."""
        super().finish()
        self._writer.close()


class ArrowWriter(_Grouped):
    """Writes rows as an Arrow file; with `is_stream`, as an Arrow stream, which can be read from a pipe."""

    def __init__(self, file: BinaryIO, *, is_stream: bool = False) -> None:
        super().__init__()
        self._writer = (pa.ipc.new_stream if is_stream else pa.ipc.new_file)(file, SCHEMA)

    def _put(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks())

    def finish(self) -> None:
        """Write the footer."""
        super().finish()
        self._writer.close()


def batch_of(rows: Sequence[MessageRow]) -> pa.RecordBatch:
    """Return rows as columns."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    arrays = []
    for (name, kind), values in zip(_TYPES.items(), columns, strict=True):
        if name in ("tag", "keys"):
            values = [value or None for value in values]  # noqa: PLW2901 - null if there is none
        elif name == "properties":
            values = [list(value.items()) for value in values]  # noqa: PLW2901 - the form of a map
        if kind == _TIMESTAMP:
            # Via integers: a datetime has a smaller range than the 64 bits of a record.
            arrays.append(pa.array(values, pa.int64()).cast(_TIMESTAMP))
        else:
            arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# --- read


def parquet_rows(
    file: BinaryIO, path: str, names: ColumnNames | None, *, skip: int = 0
) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file from row `skip` on; raises `ImportFileError` if it is not valid."""
    try:
        source = pq.ParquetFile(file, thrift_string_size_limit=64 << 20)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_valid(path, "", "a Parquet file", error) from error
    # Row groups that are skipped completely are not read.
    first = 0
    groups: list[int] = []
    for number in range(source.metadata.num_row_groups):
        rows = source.metadata.row_group(number).num_rows
        if first + rows <= skip and not groups:
            first += rows
        else:
            groups.append(number)
    # An empty list would mean all.
    batches = source.iter_batches(_READ_ROWS, row_groups=groups) if groups else iter(())
    yield from _rows(batches, source.schema_arrow, path, names, skip, first)


def arrow_rows(
    file: BinaryIO, path: str, names: ColumnNames | None, *, skip: int = 0
) -> Iterator[FileRow]:
    """Yield the rows of an Arrow file or stream from row `skip` on; raises `ImportFileError` if it is not valid."""
    try:
        is_file = file.seekable() and file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        if file.seekable():
            file.seek(0)
        source = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_valid(path, "", "an Arrow file", error) from error
    batches = _batches_of_file(source) if is_file else iter(source)
    yield from _rows(batches, source.schema, path, names, skip, 0)


def _batches_of_file(source: Any) -> Iterator[pa.RecordBatch]:
    for number in range(source.num_record_batches):
        yield source.get_batch(number)


def _not_valid(path: str, where: str, what: str, error: Exception) -> ImportFileError:
    return ImportFileError(
        path, where, f"it is not {what}, or it is truncated or corrupt: {error}; rows before it are not affected"
        if where else f"it is not {what}, or it is truncated or corrupt: {error}",
    )  # fmt: skip


def _rows(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    path: str,
    names: ColumnNames | None,
    skip: int,
    number: int,
) -> Iterator[FileRow]:
    """Yield the rows of batches; `number` rows are before the first batch."""
    try:
        if names is None:
            check_names(schema.names)
        meaning = None if names is None else names.known(schema.names, _KNOWN)
        _check_once(meaning or {})
    except ColumnError as error:
        raise ImportFileError(path, "", str(error)) from error
    except UnicodeDecodeError as error:
        raise _not_valid(path, "", "a file whose columns have names", error) from error
    while True:
        where = f"after row {number}"
        try:
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _not_valid(path, where, "valid there", error) from error
        if number + batch.num_rows > skip:
            for at in range(max(skip - number, 0), batch.num_rows, _READ_ROWS):
                part = batch.slice(at, _READ_ROWS)
                if meaning is None:
                    yield from _whole_rows(part, number + at)
                else:
                    yield from _rows_of(part, meaning, path, number + at)
        number += batch.num_rows


def _whole_rows(batch: pa.RecordBatch, before: int) -> Iterator[FileRow]:
    """Yield the rows of a validated batch as JSON; one that has a value without a text is not valid."""
    try:
        rows = batch.to_pylist()
    except _NO_VALUE:
        # One by one, it shows which row has the value that Python does not have.
        rows = None
    for at in range(batch.num_rows):
        number = before + at + 1
        try:
            fields = batch.slice(at, 1).to_pylist()[0] if rows is None else rows[at]
            yield FileRow(number, f"row {number}", fields, None, json_of(fields))
        except ColumnError as error:
            yield FileRow(number, f"row {number}", None, error)
        except _NO_VALUE as error:
            reason = ColumnError("", f"a value cannot be read: {error}")
            yield FileRow(number, f"row {number}", None, reason)


def _check_once(meaning: Mapping[str, str]) -> None:
    """Raise `ColumnError` if two columns mean the same field."""
    seen: dict[str, str] = {}
    for there, meant in meaning.items():
        other = seen.setdefault(_FIELDS.get(meant, meant), there)
        if other != there:
            raise ColumnError(there, f"means the same as column {other!r}")


def _rows_of(
    batch: pa.RecordBatch, meaning: Mapping[str, str], path: str, before: int
) -> Iterator[FileRow]:
    """Yield the rows of a validated batch."""
    columns = {
        _FIELDS[meant]: _values(batch.column(there), _FIELDS[meant], there, path)
        for there, meant in meaning.items()
        if meant not in _DERIVED
    }
    for at in range(batch.num_rows):
        number = before + at + 1
        fields = {name: values[at] for name, values in columns.items()}
        error = None
        if fields.get("properties"):
            pairs = fields["properties"]
            fields["properties"] = dict(pairs)
            error = _bad_pairs(pairs, fields)
        yield FileRow(number, f"row {number}", None if error else fields, error)


def _bad_pairs(pairs: Sequence[tuple[Any, Any]], fields: Mapping[str, Any]) -> ColumnError | None:
    if len(fields["properties"]) < len(pairs) and fields.get("properties_text") is None:
        return ColumnError("properties", "has the same name twice")
    if any(value is None for _, value in pairs):
        return ColumnError("properties", "has a name without a value")
    return None


def _values(column: pa.Array, name: str, there: str, path: str) -> list[Any]:
    """Return the values of a column in the type of its field; raises `ImportFileError` for one of another type."""
    wanted = _TYPES[name]
    try:
        found = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if pa.types.is_list(found.type) and name == "keys":
            lists = found.cast(pa.list_(pa.string())).to_pylist()
            return [None if keys is None else joined_keys(keys) for keys in lists]
        if wanted == _TIMESTAMP:
            return _times(found)
        is_null = pa.types.is_null(found.type)
        if not is_null and _kind_of(found.type) != _kind_of(wanted):
            raise pa.ArrowTypeError(f"{found.type} is not {wanted}")
        # Its range is checked when the row is stored.
        target = pa.int64() if pa.types.is_integer(wanted) else wanted
        values: list[Any] = found.cast(target).to_pylist()
    except ColumnError as error:
        raise ImportFileError(path, f"column {there!r}", str(error)) from error
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ImportFileError(
            path, f"column {there!r}", f"it is {column.type}, and must be {wanted}: {error}"
        ) from error
    return values


def _times(column: pa.Array) -> list[Any]:
    if pa.types.is_integer(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    if not pa.types.is_timestamp(column.type):
        raise pa.ArrowTypeError("it is neither a timestamp nor integer milliseconds")
    # Finer units are rounded down to the milliseconds of a record.
    return list(column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_pylist())  # fmt: skip


def _kind_of(kind: pa.DataType) -> str:
    """Return what kind of values a type has; text may be given for a body, too."""
    if pa.types.is_integer(kind):
        return "integer"
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    others = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    if any(test(kind) for test in (*texts, *others)):
        return "text"
    return "map" if pa.types.is_map(kind) else str(kind)
