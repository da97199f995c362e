"""Arrow tables into records: encoded as columns, without a Python object a row.

A record is the join of a header, the body, the topic with its length, and the properties with theirs. Each
is a column, or the same for every row, and is copied to its places in the batch by itself (see `joining`).
The checks are those of `encode`; rows whose `properties` are not plain (see `pairs_in`) go through it one by
one.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow import TIMESTAMP
from penstock.commitlog import AppendedBatch
from penstock.crcs import crc_each
from penstock.encode import EncodedBatch, Target, encode_messages, fill_headers, header_of
from penstock.errors import MessageError, MessageTooLargeError, PropertyError
from penstock.javatext import Bytes, Int64s, hash_pieces, java_hash
from penstock.joining import Part, Pieces, Some, joined, size_of
from penstock.lane import Lane
from penstock.message import Durability, Message, PutStatus
from penstock.names import check_queue, check_topic
from penstock.pairs_in import own_texts
from penstock.properties import check_zeros
from penstock.record import (
    PROPERTIES_BYTES_MAX,
    V1_TOPIC_BYTES_MAX,
    reserve_crc_property,
)
from penstock.stamps import STORE_TIME_AT

_COLUMNS = ("topic", "body", "queue", "tag", "keys", "properties", "flag", "born_time")
_NAME_END, _PAIR_END, _SPACE = 0x01, 0x02, 0x20
_COUNTED_MAX = 1 << 16
_LONG_TEXT = 512


@attrs.frozen(kw_only=True)
class Rows:
    """The columns of a table, checked, each of plain type and without nulls where none may be."""

    topic: pa.Array
    body: pa.Array
    queue: Int64s
    tag: pa.Array
    keys: pa.Array
    properties: pa.Array | None
    flag: Int64s
    born_time_ms: Int64s | None
    _pieces: dict[str, Pieces] = attrs.Factory(dict)

    def pieces(self, name: str) -> Pieces:
        """Return where the values of a text column lie."""
        found = self._pieces.get(name)
        if found is None:
            found = self._pieces[name] = pieces_of(getattr(self, name))
        return found

    def __len__(self) -> int:
        return len(self.queue)


def encode_table(target: Target, table: pa.Table | pa.RecordBatch) -> EncodedBatch:
    """Return the rows of a table as one batch; the first that cannot be stored stops it."""
    rows = _rows(table)
    own = own_texts(rows.properties)
    if own is None or _has_long_topic(rows):
        return encode_messages(target, _messages(rows))
    return _encode_columns(target, rows, own)


def _rows(table: pa.Table | pa.RecordBatch) -> Rows:
    names = table.schema.names
    for name in names:
        if name not in _COLUMNS:
            raise MessageError(
                f"there is no column {name!r} to put; there are: {', '.join(_COLUMNS)}"
            )
    for name in ("topic", "body"):
        if name not in names:
            raise MessageError(f"the table has no column {name!r}, which every message needs")
    given = {name: _whole(table.column(name)) for name in names}
    count = table.num_rows
    for name in ("topic", "body"):
        if given[name].null_count:
            raise MessageError(f"column {name!r} has nulls; every message needs one")
    return Rows(
        topic=_cast(given["topic"], pa.string(), "topic"),
        body=_cast(given["body"], pa.binary(), "body"),
        queue=_numbers(given.get("queue"), count, "queue"),
        tag=_texts(given.get("tag"), count, "tag"),
        keys=_texts(_joined(given.get("keys")), count, "keys"),
        properties=given.get("properties"),
        flag=_numbers(given.get("flag"), count, "flag"),
        born_time_ms=_times(given.get("born_time")),
    )


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        # One chunk would be copied as well.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MessageError(
            f"column {name!r} is {column.type}, and cannot be taken as {kind}: {error}"
        ) from error


def _numbers(column: pa.Array | None, count: int, name: str) -> Int64s:
    if column is None:
        return np.zeros(count, np.int64)
    if pa.types.is_boolean(column.type) or _is_text(column.type):
        raise MessageError(f"column {name!r} is {column.type}, and must be of whole numbers")
    whole: Int64s = _filled(_cast(column, pa.int64(), name), 0).to_numpy(zero_copy_only=False)
    return whole


def _is_text(kind: pa.DataType) -> bool:
    """Say whether a type is of text or bytes, which Arrow would read numbers from."""
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return kind in kinds or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def _texts(column: pa.Array | None, count: int, name: str) -> pa.Array:
    if column is None:
        bounds = pa.py_buffer(np.zeros(count + 1, np.int32))
        return pa.Array.from_buffers(pa.string(), count, [None, bounds, pa.py_buffer(b"")])
    return _filled(_cast(column, pa.string(), name), "")


def _filled(column: pa.Array, value: Any) -> pa.Array:
    return pc.fill_null(column, value) if column.null_count else column


def _joined(column: pa.Array | None) -> pa.Array | None:
    if column is not None and pa.types.is_list(column.type):
        return pc.binary_join(_cast(column, pa.list_(pa.string()), "keys"), " ")
    return column


def _times(column: pa.Array | None) -> Int64s | None:
    if column is None or (column.null_count == len(column) and len(column)):
        return None
    if column.null_count:
        raise MessageError(
            "column 'born_time' has nulls in some rows: give it in all rows or in none"
        )
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIMESTAMP if column.type.tz else pa.timestamp("ms"), safe=False)
    whole: Int64s = column.cast(pa.int64()).to_numpy()
    return whole


def _has_long_topic(rows: Rows) -> bool:
    return bool(rows.pieces("topic").sizes.max(initial=0) > V1_TOPIC_BYTES_MAX)


def _messages(rows: Rows) -> Sequence[Message]:
    properties = rows.properties.to_pylist() if rows.properties is not None else [None] * len(rows)
    born = rows.born_time_ms.tolist() if rows.born_time_ms is not None else [None] * len(rows)
    return [
        Message(
            topic, body, queue=queue, tag=tag, keys=[keys] if keys else [],
            properties=dict(pairs or {}), flag=flag, born_time_ms=time_ms,
        )
        for topic, body, queue, tag, keys, pairs, flag, time_ms in zip(
            rows.topic.to_pylist(), rows.body.to_pylist(), rows.queue.tolist(), rows.tag.to_pylist(),
            rows.keys.to_pylist(), properties, rows.flag.tolist(), born, strict=True,
        )
    ]  # fmt: skip


def _encode_columns(target: Target, rows: Rows, own: pa.Array | str) -> EncodedBatch:
    _check(target, rows)
    log, count = target.log, len(rows)
    coded = rows.topic.dictionary_encode()
    topics = coded.dictionary.to_pylist()
    topic_rows = coded.indices.to_numpy().astype(np.int64)
    lanes, lane_rows = _lanes(target, topics, topic_rows, rows.queue)
    topic, body = _topics(topics, coded), rows.pieces("body")
    text = _properties(rows, own, crc_property=log.crc_property)
    text_sizes = size_of(text, count)
    if count and int(text_sizes.max()) > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "a properties text", int(text_sizes.max()), PROPERTIES_BYTES_MAX, "shorten it"
        )
    if count and not log.crc_property and int(text_sizes.max()) >= _LONG_TEXT:
        for pieces in (part for part in text if isinstance(part, Pieces)):
            check_zeros(_text_of(pieces).tobytes())
    host = log.store_host
    header = header_of(host, int(rows.queue[0]) if count else 0, log.now_ms())
    parts: list[Part] = [header, body, topic, text_sizes.astype(">u2"), *text]
    sizes = size_of(parts, count)
    starts = np.cumsum(sizes) - sizes
    data = joined(parts, sizes, starts)
    if count:
        fill_headers(
            data, starts, len(host), sizes=sizes, crcs=crc_each(*body), body_sizes=body.sizes,
            queues=rows.queue if len(lanes) > 1 else None,
            flags=rows.flag if rows.flag.any() else None, born_times_ms=rows.born_time_ms,
        )  # fmt: skip
    return EncodedBatch(
        data=data, sizes=sizes, lanes=lanes, lane_rows=lane_rows,
        store_time_at=STORE_TIME_AT + len(host), tag_codes=_codes_of(rows.tag),
    )  # fmt: skip


def _topics(topics: list[str], coded: pa.DictionaryArray) -> Part:
    """Return each row's topic with its length before it."""
    prefixed = [_prefixed(topic) for topic in topics]
    if len(prefixed) == 1:
        return prefixed[0]
    return pieces_of(pa.array(prefixed, pa.binary()).take(coded.indices))


def _text_of(pieces: Pieces) -> Bytes:
    """Return the bytes of all values of a column."""
    raw, starts, sizes = pieces
    return raw[int(starts[0]) : int(starts[-1] + sizes[-1])]


def pieces_of(column: pa.Array) -> Pieces:
    """Return where the values of a binary or string column lie; a null is an empty one."""
    _, bounds, data = column.buffers()
    ends = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    starts = ends[:-1].astype(np.int64)
    return Pieces(raw, starts, ends[1:] - starts)


def _prefixed(topic: str) -> bytes:
    raw = topic.encode()
    return bytes([len(raw)]) + raw


def _check(target: Target, rows: Rows) -> None:
    """Make the checks of `encode` on whole columns."""
    if len(rows) == 0:
        return
    longest = int(rows.pieces("body").sizes.max())
    if longest > target.body_bytes_max:
        raise MessageTooLargeError(
            "a body", longest, target.body_bytes_max, "shorten it, or raise log.body_bytes_max"
        )
    for name, column in (("TAGS", "tag"), ("KEYS", "keys")):
        text = _text_of(rows.pieces(column))
        if (text == _NAME_END).any() or (text == _PAIR_END).any():
            raise PropertyError(name, "a value holds 0x01 or 0x02, which separate properties")
    if (_text_of(rows.pieces("keys")) == _SPACE).any():
        blank = pc.and_(pc.not_equal(rows.keys, ""), pc.equal(pc.utf8_trim(rows.keys, " "), ""))
        if pc.any(blank).as_py():
            raise PropertyError("KEYS", "a key of nothing but spaces could never be found")
    low, high = int(rows.flag.min()), int(rows.flag.max())
    if low < -(1 << 31) or high >= 1 << 31:
        raise MessageError(f"a flag does not fit 32 bits: {low if low < 0 else high}")


def _lanes(
    target: Target, topics: list[str], topic_rows: Int64s, queues: Int64s
) -> tuple[list[Lane], Int64s]:
    for topic in topics:
        check_topic(topic)
    if len(queues):
        check_queue(int(queues.min()))
        check_queue(int(queues.max()))
    span = int(queues.max(initial=0)) + 1
    distinct, lane_rows = _numbered(topic_rows * span + queues, len(topics) * span)
    lanes = [target.lane(topics[pair // span], pair % span) for pair in distinct.tolist()]
    return lanes, lane_rows


def _numbered(values: Int64s, limit: int) -> tuple[Int64s, Int64s]:
    """Return the distinct values, ascending, and for each value its place among them; all are below `limit`."""
    if limit > _COUNTED_MAX:
        distinct, places = np.unique(values, return_inverse=True)
        return distinct, places.astype(np.int64)
    # No sort where they can be counted.
    distinct = np.flatnonzero(np.bincount(values, minlength=limit))
    places = np.zeros(limit, np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[values]


def _properties(rows: Rows, own: pa.Array | str, *, crc_property: bool) -> list[Part]:
    """Return the parts of each row's properties text: tag, keys, its own, as `encode_properties` orders them."""
    parts = [*_pair(b"TAGS\x01", rows.pieces("tag")), *_pair(b"KEYS\x01", rows.pieces("keys"))]
    if not isinstance(own, str):
        parts.append(pieces_of(own))
    if crc_property:
        parts.append(reserve_crc_property(b""))
    return parts


def _codes_of(tags: pa.Array) -> Int64s:
    """Return what queue entries say of tags."""
    if not _has_text(tags):
        return np.zeros(len(tags), np.int64)
    coded = tags.dictionary_encode()
    codes = np.array([java_hash(tag) for tag in coded.dictionary.to_pylist()], np.int64)
    found: Int64s = codes[coded.indices.to_numpy()]
    return found


def _has_text(column: pa.Array) -> bool:
    """Say whether any value could be more than empty."""
    data = column.buffers()[2]
    return data is not None and data.size > 0


def _pair(name: bytes, pieces: Pieces) -> list[Part]:
    """Return the parts of a name and its values; none where a value is empty."""
    rows = np.flatnonzero(pieces.sizes)
    if len(rows) == 0:
        return []
    if len(rows) == len(pieces.sizes):
        return [name, pieces, b"\x02"]
    return [Some(name, rows), pieces, Some(b"\x02", rows)]


def receipts(
    done: AppendedBatch, batch: EncodedBatch, status: PutStatus, durability: Durability
) -> pa.Table:
    """Return the receipts of a batch as a table."""
    queues = np.array([lane.queue for lane in batch.lanes], np.int32)
    count = len(done.sizes)
    return pa.table(
        {
            "status": pa.repeat(str(status), count),
            "log_offset": done.log_offsets,
            "queue": queues[batch.lane_rows] if count else np.zeros(0, np.int32),
            "queue_offset": done.queue_offsets,
            "store_time": pa.array(np.full(count, done.store_time_ms)).cast(TIMESTAMP),
            "size": done.sizes.astype(np.int32),
            "durability": pa.repeat(str(durability), count),
        }
    )


def key_hashes(column: pa.Array) -> Int64s:
    """Return Java's `String.hashCode` of each text of a column, 0 for null."""
    texts = pc.fill_null(_cast(column, pa.string(), "key"), "")
    if len(texts) == 0:
        return np.zeros(0, np.int64)
    return hash_pieces(*pieces_of(texts)).astype(np.int64)
