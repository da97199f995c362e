"""The source's columns: Kafka's first, the rest where a user schema names them.

Spark takes Arrow batches only if their schema is exactly the one it derives itself: plain string and
binary, timestamps in microseconds and UTC.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigError

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


class Column(NamedTuple):
    """One column: Spark's type, as DDL and as Spark prints it, its Arrow type, and the store's column."""

    ddl: str
    shown: str
    kind: pa.DataType
    source: str


def _plain(ddl: str, kind: pa.DataType, source: str) -> Column:
    return Column(ddl, ddl.lower(), kind, source)


COLUMNS: dict[str, Column] = {
    "key": _plain("BINARY", pa.binary(), "keys"),
    "value": _plain("BINARY", pa.binary(), "body"),
    "topic": _plain("STRING", pa.string(), "topic"),
    "partition": _plain("INT", pa.int32(), "queue"),
    "offset": _plain("BIGINT", pa.int64(), "queue_offset"),
    "timestamp": _plain("TIMESTAMP", TIMESTAMP, "store_time"),
    "timestampType": _plain("INT", pa.int32(), "queue"),
    "headers": Column(
        "ARRAY<STRUCT<key: STRING, value: BINARY>>",
        "array<struct<key:string,value:binary>>",
        pa.list_(pa.field("element", HEADER)),
        "properties",
    ),
    "tags": _plain("STRING", pa.string(), "tag"),
    "keys": _plain("STRING", pa.string(), "keys"),
    "properties": Column(
        "MAP<STRING, STRING>", "map<string,string>", pa.map_(pa.string(), pa.string()), "properties"
    ),
    "bornTimestamp": _plain("TIMESTAMP", TIMESTAMP, "born_time"),
    "storeTimestamp": _plain("TIMESTAMP", TIMESTAMP, "store_time"),
    "logOffset": _plain("BIGINT", pa.int64(), "log_offset"),
    "messageId": _plain("STRING", pa.string(), "message_id"),
    "sysFlag": _plain("INT", pa.int32(), "sys_flag"),
    "flag": _plain("INT", pa.int32(), "flag"),
    "store": _plain("STRING", pa.string(), "queue"),
}
DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
# Kafka's LogAppendTime: the time is that of storing.
_LOG_APPEND_TIME = 1

Convert = Callable[[pa.RecordBatch, str], pa.RecordBatch]


def ddl(*, headers: bool) -> str:
    """Return the columns that are there without a user schema."""
    names = (*DEFAULT, "headers") if headers else DEFAULT
    return ", ".join(f"{name} {COLUMNS[name].ddl}" for name in names)


def check_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the asked columns, given each one's name and type as Spark prints it; others are refused."""
    for name, shown in fields:
        if name not in COLUMNS:
            near = next((known for known in COLUMNS if known.lower() == name.lower()), None)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"there is no column {name!r}{hint}; there are: {', '.join(COLUMNS)}")
        if shown.lower() != COLUMNS[name].shown:
            raise ConfigError(
                f"the column {name!r} is {COLUMNS[name].shown}, not {shown}: read it as that, and cast it"
            )
    return tuple(name for name, _ in fields)


def store_columns(names: Sequence[str]) -> list[str]:
    """Return the store's columns that these need; at least one, so that rows are counted."""
    return list(dict.fromkeys(COLUMNS[name].source for name in names)) or ["queue"]


def converter(names: Sequence[str]) -> Convert:
    """Return what turns a batch of the named store into one of Spark's."""
    schema = pa.schema([(name, COLUMNS[name].kind) for name in names])

    def convert(batch: pa.RecordBatch, store: str) -> pa.RecordBatch:
        arrays = [_column(batch, name, store) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert


def _column(batch: pa.RecordBatch, name: str, store: str) -> pa.Array:
    _, _, kind, source = COLUMNS[name]
    if name == "timestampType":
        return pa.array(np.full(batch.num_rows, _LOG_APPEND_TIME, np.int32))
    if name == "store":
        return pa.repeat(pa.scalar(store, kind), batch.num_rows)
    column = batch.column(source)
    if name == "headers":
        return _headers(column, kind)
    return column if column.type == kind else column.cast(kind)


def _headers(properties: pa.MapArray, kind: pa.DataType) -> pa.ListArray:
    """Return a map's pairs as Kafka's headers; nothing is copied."""
    pairs = [properties.keys, properties.items.cast(pa.binary())]
    structs = pa.StructArray.from_arrays(pairs, fields=list(HEADER))
    return pa.ListArray.from_arrays(properties.offsets, structs, type=kind)
