"""The columns that jobs move, by the source's names: written by `export`, read by `replay`. No pyspark in here.

They are a format of files, so they do not grow with the source's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")
# Kafka's LogAppendTime: the time is that of storing.
_LOG_APPEND_TIME = 1


class Kind(NamedTuple):
    """Spark's type of a column, its Arrow type, and the store's column it comes from."""

    ddl: str
    arrow: pa.DataType
    source: str


# All but `topic`, which an export has in the path, as Hive does.
EXPORTED: dict[str, Kind] = {
    "key": Kind("binary", pa.binary(), "keys"),
    "value": Kind("binary", pa.binary(), "body"),
    "partition": Kind("int", pa.int32(), "queue"),
    "offset": Kind("bigint", pa.int64(), "queue_offset"),
    "timestamp": Kind("timestamp", _TIME, "store_time"),
    "timestampType": Kind("int", pa.int32(), "queue"),
    "tags": Kind("string", pa.string(), "tag"),
    "keys": Kind("string", pa.string(), "keys"),
    "properties": Kind("map<string,string>", pa.map_(pa.string(), pa.string()), "properties"),
    "bornTimestamp": Kind("timestamp", _TIME, "born_time"),
    "storeTimestamp": Kind("timestamp", _TIME, "store_time"),
    "logOffset": Kind("bigint", pa.int64(), "log_offset"),
    "messageId": Kind("string", pa.string(), "message_id"),
    "sysFlag": Kind("int", pa.int32(), "sys_flag"),
    "flag": Kind("int", pa.int32(), "flag"),
}
ALL = {**EXPORTED, "topic": Kind("string", pa.string(), "topic")}


def needed(names: Sequence[str]) -> list[str]:
    """Return the store's columns that these come from."""
    return list(dict.fromkeys(ALL[name].source for name in names))


def ddl_of(names: Sequence[str]) -> str:
    """Return Spark's schema of these columns."""
    return ", ".join(f"{name} {ALL[name].ddl}" for name in names)


def converted(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return a batch of the store with these columns."""
    schema = pa.schema([(name, ALL[name].arrow) for name in names])
    return pa.RecordBatch.from_arrays([_column(batch, name) for name in names], schema=schema)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name == "timestampType":
        return pa.array(np.full(batch.num_rows, _LOG_APPEND_TIME, np.int32))
    kind = ALL[name]
    column = batch.column(kind.source)
    return column if column.type == kind.arrow else column.cast(kind.arrow)
