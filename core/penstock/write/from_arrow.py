"""Encodes Arrow tables into records: the compiled kernel reads their buffers, without a Python object per row.

A row that is not plain (a reserved property, a property given twice) is encoded as a single message. A row that is
refused is encoded in the same way, which raises the reason.
"""

import contextlib
from typing import Any

import attrs
import numpy as np

from penstock._kernel import ArrowRows, Batch, Message, RecordEncoder, hash_pieces
from penstock.errors import ArgumentTypeError, MessageError, MissingExtraError
from penstock.escape import shown
from penstock.format.arrays import Int64s
from penstock.format.arrow_schema import TIMESTAMP
from penstock.message import Durability, PutStatus

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise MissingExtraError("pyarrow", "arrow", "reading and writing Arrow tables") from error

_COLUMNS = ("topic", "body", "queue", "tag", "keys", "properties", "flag", "born_time")
# Replaces the offsets buffer, which a column without values may not have.
_NO_BOUNDS = np.zeros(1, np.int32)
# Offsets, bytes, and the index of the first value.
Texts = tuple[Any, Any, int]


@attrs.frozen(kw_only=True)
class TableRows:
    """The checked columns of a table, each of a plain type, and without nulls except in `properties`."""

    topic: pa.Array
    body: pa.Array
    queue: Int64s
    tag: pa.Array | None
    keys: pa.Array | None
    properties: pa.Array | None
    flag: Int64s | None
    born_time_ms: Int64s | None

    def __len__(self) -> int:
        return len(self.topic)

    def check_offsets(self) -> None:
        """Raise `MessageError` if a column's offsets lie outside of its bytes.

        The kernel checks them itself, row by row. Arrow does not, and ends the process when it reads such a row.
        """
        for name in ("topic", "body", "tag", "keys", "properties"):
            column = getattr(self, name)
            if column is not None:
                _check_offsets(name, column)

    def message(self, row: int) -> Message:
        """Return one row as a message."""
        keys = _value(self.keys, row, "keys")
        pairs = None if self.properties is None else self.properties[row].as_py()
        try:
            return Message(
                _value(self.topic, row, "topic"), self.body[row].as_py(),
                queue=int(self.queue[row]),
                tag=_value(self.tag, row, "tag"), keys=[key for key in keys.split(" ") if key] or [keys] * bool(keys),
                properties=dict(pairs or {}), flag=0 if self.flag is None else int(self.flag[row]),
                born_time_ms=None if self.born_time_ms is None else int(self.born_time_ms[row]),
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise MessageError(
                f"the properties of row {row} are not pairs of strings: {error}; nothing was stored"
            ) from error

    def columns(self, encoder: RecordEncoder) -> ArrowRows:
        """Return the columns in the form that the compiled kernel reads."""
        return ArrowRows(
            encoder, len(self), texts_of(self.topic), texts_of(self.body), queue=self.queue,
            tag=None if self.tag is None else texts_of(self.tag),
            keys=None if self.keys is None else texts_of(self.keys),
            flag=self.flag, born_ms=self.born_time_ms, pairs=_pairs_of(self.properties),
        )  # fmt: skip


def _check_offsets(name: str, column: pa.Array) -> None:
    try:
        # As bytes, since a text that is not UTF-8 is reported with its row.
        is_text = pa.types.is_string(column.type)
        (column.cast(pa.binary()) if is_text else column).validate(full=True)
    except pa.ArrowInvalid as error:
        raise MessageError(
            f"column {name!r} is not a valid Arrow array: {error}; nothing was stored"
        ) from error


def _value(column: pa.Array | None, row: int, name: str) -> str:
    try:
        return "" if column is None else str(column[row].as_py())
    except UnicodeDecodeError as error:
        raise MessageError(f"column {name!r} is not valid UTF-8 in row {row}: {error}") from error


def check_table(call: str, table: object) -> None:
    """Raise `ArgumentTypeError` for anything that is not an Arrow table or record batch."""
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise ArgumentTypeError(
            call, "table", table,
            "a pyarrow.Table or RecordBatch; pyarrow.table(...) makes one of a dictionary or a data frame",
        )  # fmt: skip


def encode_table(encoder: RecordEncoder, table: pa.Table | pa.RecordBatch) -> Batch:
    """Return the rows of a table as one batch (see `Batch`); raises at the first row that cannot be stored."""
    rows, batch, at = _rows(encoder, table), Batch(encoder), 0
    is_plain = rows.properties is None or _are_texts(rows.properties)
    columns = rows.columns(encoder) if is_plain else None
    is_checked = False
    while at < len(rows):
        if columns is not None:
            at = batch.add_columns(columns, at)
        if at < len(rows):
            if not is_checked:
                rows.check_offsets()
                is_checked = True
            try:
                batch.add(rows.message(at))
            except MessageError as error:
                error.add_note(f"it is row {at} of the table; nothing was stored")
                raise
            at += 1
    return batch


def _rows(encoder: RecordEncoder, table: pa.Table | pa.RecordBatch) -> TableRows:
    """Return the checked columns of a table; raises `MessageError` for an invalid one."""
    names = table.schema.names
    for name in names:
        if name not in _COLUMNS:
            raise MessageError(
                f"column {name!r} cannot be stored; the columns of a message are: {', '.join(_COLUMNS)}"
            )
        if names.count(name) > 1:
            raise MessageError(f"the table has column {name!r} more than once")
    for name in ("topic", "body"):
        if name not in names:
            raise MessageError(f"the table has no column {name!r}, which is required")
    given = {name: _as_one_array(table.column(name)) for name in names}
    for name in ("topic", "body"):
        if given[name].null_count:
            raise MessageError(f"column {name!r} has nulls, but every message needs a value")
    topic = _cast(given["topic"], pa.string(), "topic")
    return TableRows(
        topic=topic,
        body=_cast(given["body"], pa.binary(), "body"),
        queue=_queues(encoder, topic, given.get("queue")),
        tag=_texts(given.get("tag"), "tag"),
        keys=_texts(_join_keys(given.get("keys")), "keys"),
        properties=given.get("properties"),
        flag=None if "flag" not in given else _numbers(given["flag"], "flag"),
        born_time_ms=_times(given.get("born_time")),
    )


def _as_one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        # `combine_chunks` would copy a single chunk, too.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _cast(column: pa.Array, kind: pa.DataType, name: str, *, safe: bool = True) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MessageError(
            f"column {name!r} is {column.type}, which cannot be converted to {kind}: {error}"
        ) from error


def _queues(encoder: RecordEncoder, topics: pa.Array, column: pa.Array | None) -> Int64s:
    """Return the queue of each row; where it has none, the next of its topic in turn."""
    if column is None:
        column = pa.nulls(len(topics), pa.int64())
    missing = column.is_null().to_numpy(zero_copy_only=False)
    queues = _numbers(column, "queue")
    if missing.any():
        _check_offsets("topic", topics)
        coded = topics.dictionary_encode()
        queues = queues.copy()
        asking = np.nonzero(missing)[0]
        codes = coded.indices.to_numpy(zero_copy_only=False)[asking]
        # The rows of each topic, in their order.
        order = np.argsort(codes, kind="stable")
        found, firsts = np.unique(codes[order], return_index=True)
        for code, rows in zip(found.tolist(), np.split(asking[order], firsts[1:]), strict=True):
            # A topic that is refused is refused again, with its row.
            with contextlib.suppress(MessageError, UnicodeDecodeError):
                first, count = encoder.take_turns(coded.dictionary[code].as_py(), len(rows))
                queues[rows] = (first + np.arange(len(rows))) % count
    return queues


def _numbers(column: pa.Array, name: str) -> Int64s:
    if pa.types.is_boolean(column.type) or _is_text(column.type):
        raise MessageError(f"column {name!r} is {column.type}, but must contain integers")
    return _whole_numbers(_fill_nulls(_cast(column, pa.int64(), name), 0))


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text or bytes, which Arrow would parse as numbers."""
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return kind in kinds or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def _texts(column: pa.Array | None, name: str) -> pa.Array | None:
    if column is None:
        return None
    return _fill_nulls(_cast(column, pa.string(), name), "")


def _fill_nulls(column: pa.Array, value: Any) -> pa.Array:
    return pc.fill_null(column, value) if column.null_count else column


def _join_keys(column: pa.Array | None) -> pa.Array | None:
    if column is not None and (
        pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    ):
        column = _cast(column, pa.list_(pa.string()), "keys")
        texts = column.flatten()
        if pc.any(pc.fill_null(pc.equal(texts, ""), fill_value=True)).as_py():
            raise MessageError(
                "column 'keys' has a list with a null or an empty key; nothing was stored"
            )
        spaced = pc.match_substring(texts, " ")
        if pc.any(spaced).as_py():
            key = texts.filter(spaced)[0].as_py()
            raise MessageError(f"column 'keys' has {shown(key)}: a space separates keys, so it is not one key; nothing "
                "was stored")  # fmt: skip
        return pc.binary_join(column, " ")
    return column


def _times(column: pa.Array | None) -> Int64s | None:
    if column is None or (column.null_count == len(column) and len(column)):
        return None
    if column.null_count:
        raise MessageError(
            "column 'born_time' has nulls in some rows: set it in all rows or in none"
        )
    if pa.types.is_timestamp(column.type):
        kind = TIMESTAMP if column.type.tz else pa.timestamp("ms")
        # Only of seconds none are cut off, but they may be too many.
        column = _cast(column, kind, "born_time", safe=column.type.unit == "s").cast(pa.int64())
    return _numbers(column, "born_time")


def _whole_numbers(column: pa.Array) -> Int64s:
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.int64)


def texts_of(column: pa.Array) -> Texts:
    """Return the buffers of a binary or string column."""
    _, bounds, data = column.buffers()
    return (_NO_BOUNDS, None, 0) if bounds is None else (bounds, data, column.offset)


def _are_texts(column: pa.Array) -> bool:
    """Return whether a column is a map of strings without nulls among the strings."""
    if not pa.types.is_map(column.type):
        return False
    bounds = column.offsets.to_numpy()
    if column.null_count and np.diff(bounds)[column.is_null().to_numpy(zero_copy_only=False)].any():
        return False
    parts = (column.keys, column.items)
    return all(pa.types.is_string(part.type) and not part.null_count for part in parts)


def _pairs_of(column: pa.Array | None) -> tuple[Any, int, Texts, Texts, int] | None:
    if column is None:
        return None
    _, bounds, *_ = column.buffers()
    names, values = column.keys, column.items
    count = min(len(names), len(values))
    first = column.offset
    if bounds is None:
        bounds, first = _NO_BOUNDS, 0
    return bounds, first, texts_of(names), texts_of(values), count


def receipts(batch: Batch, store_ms: int, status: PutStatus, durability: Durability) -> pa.Table:
    """Return the receipts of a batch as a table."""
    log_offsets, queue_offsets, sizes, rows = (np.frombuffer(c, np.int64) for c in batch.columns())
    queues = np.array([cursor.queue for cursor in batch.cursors], np.int32)
    count = len(sizes)
    return pa.table(
        {
            "status": pa.repeat(str(status), count),
            "log_offset": log_offsets,
            "queue": queues[rows] if count else np.zeros(0, np.int32),
            "queue_offset": queue_offsets,
            "store_time": pa.array(np.full(count, store_ms)).cast(TIMESTAMP),
            "size": sizes.astype(np.int32),
            "durability": pa.repeat(str(durability), count),
        }
    )


def key_hashes(column: pa.Array) -> Int64s:
    """Return Java's `String.hashCode` of each string of a column, 0 for null."""
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise ArgumentTypeError("key_hashes", "keys", column, "a pyarrow.Array of strings")
    texts = pc.fill_null(_cast(column, pa.string(), "key"), "")
    if len(texts) == 0:
        return np.zeros(0, np.int64)
    bounds, data, first = texts_of(texts)
    ends = np.frombuffer(bounds, np.int32)[first : first + len(texts) + 1].astype(np.int64)
    hashes = hash_pieces(data if data is not None else b"", ends[:-1].copy(), np.diff(ends))
    return np.frombuffer(hashes, np.int32).astype(np.int64)
