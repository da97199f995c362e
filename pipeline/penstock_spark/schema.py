"""The source's columns: Kafka's first, the rest where a user schema names them.

Spark takes Arrow batches only if their schema is exactly the one it derives itself: plain string and
binary, timestamps in microseconds and UTC.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigError

TIMESTAMP = pa.timestamp("us", tz="UTC")

# Column: Spark's type, its Arrow type, the store's column it comes from.
_COLUMNS: dict[str, tuple[str, pa.DataType, str]] = {
    "key": ("BINARY", pa.binary(), "keys"),
    "value": ("BINARY", pa.binary(), "body"),
    "topic": ("STRING", pa.string(), "topic"),
    "partition": ("INT", pa.int32(), "queue"),
    "offset": ("BIGINT", pa.int64(), "queue_offset"),
    "timestamp": ("TIMESTAMP", TIMESTAMP, "store_time"),
    "timestampType": ("INT", pa.int32(), "queue"),
    "tags": ("STRING", pa.string(), "tag"),
    "keys": ("STRING", pa.string(), "keys"),
    "properties": ("MAP<STRING, STRING>", pa.map_(pa.string(), pa.string()), "properties"),
    "bornTimestamp": ("TIMESTAMP", TIMESTAMP, "born_time"),
    "storeTimestamp": ("TIMESTAMP", TIMESTAMP, "store_time"),
    "logOffset": ("BIGINT", pa.int64(), "log_offset"),
    "messageId": ("STRING", pa.string(), "message_id"),
    "sysFlag": ("INT", pa.int32(), "sys_flag"),
    "flag": ("INT", pa.int32(), "flag"),
}
DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
DDL = ", ".join(f"{name} {_COLUMNS[name][0]}" for name in DEFAULT)
# Kafka's LogAppendTime: the time is that of storing.
_LOG_APPEND_TIME = 1


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the asked columns; an unknown one is refused."""
    for name in names:
        if name not in _COLUMNS:
            raise ConfigError(f"there is no column {name!r}; there are: {', '.join(_COLUMNS)}")
    return tuple(names)


def store_columns(names: Sequence[str]) -> list[str]:
    """Return the store's columns that these need; at least one, so that rows are counted."""
    return list(dict.fromkeys(_COLUMNS[name][2] for name in names)) or ["queue"]


def converter(names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return what turns a batch of the store into one of Spark's."""
    schema = pa.schema([(name, _COLUMNS[name][1]) for name in names])

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [_column(batch, name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    _, kind, source = _COLUMNS[name]
    if name == "timestampType":
        return pa.array(np.full(batch.num_rows, _LOG_APPEND_TIME, np.int32))
    column = batch.column(source)
    return column if column.type == kind else column.cast(kind)
