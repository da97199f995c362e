"""The columns of messages in Arrow: their names, types and order. See `read.to_arrow` and `write.from_arrow`."""

from collections.abc import Iterator, Sequence

from penstock.errors import ConfigError, MissingExtraError

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtraError("pyarrow", "arrow", "reading and writing Arrow tables") from error

TIMESTAMP = pa.timestamp("ms", tz="UTC")
# All columns with their types; the first nine are the default. A number needs nothing else to be shown.
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queue": pa.int32(),
    "queue_offset": pa.int64(),
    "log_offset": pa.int64(),
    "store_time": TIMESTAMP,
    "born_time": TIMESTAMP,
    "tag": pa.string(),
    "keys": pa.list_(pa.string()),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "reconsume_times": pa.int32(),
    "prepared_offset": pa.int64(),
    "message_id": pa.string(),
    "size": pa.int32(),
    "body_size": pa.int32(),
}
DEFAULT_COLUMNS = tuple(COLUMNS)[:9]
# Numbers whose field in a row of `format.columns` has another name; any other column of a number has the field's name.
ROW_FIELDS = {
    "store_time": "store_ms",
    "born_time": "born_ms",
    "reconsume_times": "reconsume",
    "prepared_offset": "prepared",
}


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested columns, or the default ones; raises `ConfigError` for an unknown column."""
    asked = DEFAULT_COLUMNS if columns is None else tuple(columns)
    for name in asked:
        if name not in COLUMNS:
            raise ConfigError(f"there is no column {name!r}; the columns are: {', '.join(COLUMNS)}")
    return asked


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, COLUMNS[name]) for name in columns])


def reader_of(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str] | None
) -> pa.RecordBatchReader:
    """Return batches of these columns as a stream; an error of the iterator is raised unchanged."""
    return pa.RecordBatchReader.from_batches(schema_of(check_columns(columns)), batches)
