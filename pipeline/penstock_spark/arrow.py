"""pyarrow, for the modules here that need it at run time, and a message's columns in Spark. Does not import pyspark.

The absence of pyarrow is an error that names the extra. The commands of `penstock spark` import a job before they start
Spark, so pyarrow is the first package that they miss.

The columns are derived from the kernel's: a new column of the kernel becomes a column here, with its name in camel case
unless `_NAMES` has another. Spark takes Arrow batches only if their schema is exactly the one it derives itself: plain
string and binary, timestamps in microseconds and UTC.
"""

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from penstock.errors import MissingExtraError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise MissingExtraError("pyarrow", "spark", "penstock_spark") from error

# After pyarrow, since it names another extra.
from penstock.format import arrow_schema

__all__ = ["COLUMNS", "Column", "converter", "ddl_of", "pa", "pc", "pq", "store_columns"]

# Spark's names of the kernel's columns, where they differ.
_NAMES: dict[str, tuple[str, ...]] = {
    "body": ("value",),
    "queue": ("partition",),
    "queue_offset": ("offset",),
    "store_time": ("timestamp", "storeTimestamp"),
    "born_time": ("bornTimestamp",),
    "tag": ("tags",),
}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
# In microseconds it still fits into 64 bits.
_TIME_MS_MAX = (1 << 63) // 1000
_TEXTS = pa.list_(pa.field("element", pa.string()))
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_DDL = {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    _TIMESTAMP: "TIMESTAMP",
    _TEXTS: "ARRAY<STRING>",
    pa.map_(pa.string(), pa.string()): "MAP<STRING, STRING>",
}
# Kafka's LogAppendTime: the time is that of storing.
_LOG_APPEND_TIME = 1

# From a batch of the store of this name to one for Spark.
Convert = Callable[[pa.RecordBatch, str], pa.RecordBatch]


@attrs.frozen
class Column:
    """One column.

    Attributes:
        ddl: Spark's type, as DDL.
        arrow: its Arrow type.
        source: the column of the kernel that it is made from.
    """

    ddl: str
    arrow: pa.DataType
    source: str

    @property
    def shown(self) -> str:
        """Spark's type as Spark prints it."""
        return self.ddl.lower().replace(" ", "")


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _from_kernel() -> dict[str, Column]:
    found = {}
    for source, kind in arrow_schema.COLUMNS.items():
        arrow = _TIMESTAMP if pa.types.is_timestamp(kind) else kind
        arrow = _TEXTS if pa.types.is_list(kind) else arrow
        for name in _NAMES.get(source, (_camel_case(source),)):
            found[name] = Column(_DDL[arrow], arrow, source)
    return found


COLUMNS: dict[str, Column] = {
    **_from_kernel(),
    # As Kafka has it: bytes.
    "key": Column("BINARY", pa.binary(), "keys"),
    # Each row has the same value; the queue is there to count the rows.
    "timestampType": Column("INT", pa.int32(), "queue"),
    "store": Column("STRING", pa.string(), "queue"),
    "headers": Column(
        "ARRAY<STRUCT<key: STRING, value: BINARY>>",
        pa.list_(pa.field("element", _HEADER)),
        "properties",
    ),
}


def ddl_of(names: Sequence[str]) -> str:
    """Return Spark's schema of these columns."""
    return ", ".join(f"{name} {COLUMNS[name].ddl}" for name in names)


def store_columns(names: Sequence[str]) -> list[str]:
    """Return the kernel's columns that these are made from; at least one, so that rows are counted."""
    return list(dict.fromkeys(COLUMNS[name].source for name in names)) or ["queue"]


def converter(names: Sequence[str]) -> Convert:
    """Return a function that converts a batch of the kernel into one with these columns."""
    schema = pa.schema([(name, COLUMNS[name].arrow) for name in names])

    def convert(batch: pa.RecordBatch, store: str) -> pa.RecordBatch:
        arrays = [_column(batch, name, store) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert


def _column(batch: pa.RecordBatch, name: str, store: str) -> pa.Array:
    kind = COLUMNS[name].arrow
    if name == "timestampType":
        return pa.array(np.full(batch.num_rows, _LOG_APPEND_TIME, np.int32))
    if name == "store":
        return pa.repeat(pa.scalar(store, kind), batch.num_rows)
    column = batch.column(COLUMNS[name].source)
    if name == "key":
        column = pc.binary_join(column, " ")
    if name == "headers":
        return _headers(column, kind)
    if kind == _TIMESTAMP:
        return _microseconds(column)
    return column if column.type == kind else column.cast(kind)


def _microseconds(times: pa.Array) -> pa.Array:
    """Return times as Spark has them; null for one that they cannot express, which only a wrong clock or unit gives."""
    try:
        return times.cast(_TIMESTAMP)
    except pa.ArrowInvalid:
        number = times.cast(pa.int64())
        fits = pc.and_(pc.less_equal(number, _TIME_MS_MAX), pc.greater_equal(number, -_TIME_MS_MAX))
        return pc.if_else(fits, times, None).cast(_TIMESTAMP)


def _headers(properties: pa.MapArray, kind: pa.DataType) -> pa.ListArray:
    """Return a map's pairs as Kafka's headers; nothing is copied."""
    pairs = [properties.keys, properties.items.cast(pa.binary())]
    structs = pa.StructArray.from_arrays(pairs, fields=list(_HEADER))
    return pa.ListArray.from_arrays(properties.offsets, structs, type=kind)
