"""Arrow tables into records: encoded as columns, without a Python object a row.

A record is the join of a header (one numpy structured row), the body, the topic with its length, and the
properties with theirs. All four are Arrow columns, so the join of a whole batch is one C++ call, and the
result is the batch's bytes. The checks are those of `encode`; rows whose `properties` are not plain (see
`pairs_in`) go through it one by one.
"""

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow import TIMESTAMP
from penstock.commitlog import AppendedBatch
from penstock.encode import EncodedBatch, Target, encode_messages, headers
from penstock.errors import MessageError, MessageTooLargeError, PropertyError
from penstock.javatext import Int64s, hash_pieces
from penstock.lane import Lane
from penstock.message import Durability, Message, PutStatus
from penstock.names import check_queue, check_topic
from penstock.pairs_in import own_texts
from penstock.record import (
    FIXED_SIZE,
    PROPERTIES_BYTES_MAX,
    V1_TOPIC_BYTES_MAX,
    crc32,
    reserve_crc_property,
)
from penstock.stamps import STORE_TIME_AT

_COLUMNS = ("topic", "body", "queue", "tag", "keys", "properties", "flag", "born_time")
_SEPARATORS = "[\x01\x02]"
_COUNTED_MAX = 1 << 16


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

    def __len__(self) -> int:
        return len(self.queue)


def encode_table(target: Target, table: pa.Table | pa.RecordBatch) -> EncodedBatch:
    """Return the rows of a table as one batch; the first that cannot be stored stops it.

    Its data is for reading only: what is to be stamped in place is copied first.
    """
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
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MessageError(
            f"column {name!r} is {column.type}, and cannot be taken as {kind}: {error}"
        ) from error


def _numbers(column: pa.Array | None, count: int, name: str) -> Int64s:
    if column is None:
        return np.zeros(count, np.int64)
    whole: Int64s = _cast(pc.fill_null(column, 0), pa.int64(), name).to_numpy(zero_copy_only=False)
    return whole


def _texts(column: pa.Array | None, count: int, name: str) -> pa.Array:
    if column is None:
        bounds = pa.py_buffer(np.zeros(count + 1, np.int32))
        return pa.Array.from_buffers(pa.string(), count, [None, bounds, pa.py_buffer(b"")])
    return pc.fill_null(_cast(column, pa.string(), name), "")


def _joined(column: pa.Array | None) -> pa.Array | None:
    if column is not None and pa.types.is_list(column.type):
        return pc.binary_join(column, " ")
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
    longest = pc.max(pc.binary_length(rows.topic)).as_py()
    return longest is not None and longest > V1_TOPIC_BYTES_MAX


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
    log = target.log
    coded = rows.topic.dictionary_encode()
    topics = coded.dictionary.to_pylist()
    topic_rows = coded.indices.to_numpy().astype(np.int64)
    lanes, lane_rows = _lanes(target, topics, topic_rows, rows.queue)
    texts = _properties(rows, own, crc_property=log.crc_property)
    topic_column = pa.array([_prefixed(topic) for topic in topics], pa.binary()).take(coded.indices)
    body_sizes = pc.binary_length(rows.body).to_numpy().astype(np.int64)
    text_sizes = pc.binary_length(texts).to_numpy().astype(np.int64)
    if len(rows) and int(text_sizes.max()) > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(
            "a properties text", int(text_sizes.max()), PROPERTIES_BYTES_MAX, "shorten it"
        )
    topic_sizes = pc.binary_length(topic_column).to_numpy().astype(np.int64)
    host = log.store_host
    # FIXED_SIZE counts the topic's length byte and the two of the properties' length.
    sizes = FIXED_SIZE - 1 + 2 * len(host) - 16 + body_sizes + topic_sizes + text_sizes
    crcs = _crcs(rows.body)
    born = log.now_ms() if rows.born_time_ms is None else rows.born_time_ms
    head = headers(host, sizes, crcs, rows.queue, rows.flag, born, body_sizes)
    header = _fixed(head.view(np.uint8).reshape(len(rows), head.itemsize))
    lengths = _fixed(text_sizes.astype(">u2").view(np.uint8).reshape(-1, 2))
    joined = pc.binary_join_element_wise(header, rows.body, topic_column, lengths, texts, b"")
    return EncodedBatch(
        data=_values(joined),
        sizes=sizes,
        lanes=lanes,
        lane_rows=lane_rows,
        store_time_at=STORE_TIME_AT + len(host),
    )


def _crcs(column: pa.Array) -> Int64s:
    """Return the CRC-32 of each value, looked at where it lies: a bytes object of each costs more than its CRC."""
    if len(column) == 0:
        return np.zeros(0, np.int64)
    _, bounds, data = column.buffers()
    ends = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    values = map(view.__getitem__, map(slice, ends[:-1], ends[1:]))
    return np.fromiter(map(crc32, values), np.int64, len(column))


def _prefixed(topic: str) -> bytes:
    raw = topic.encode()
    return bytes([len(raw)]) + raw


def _check(target: Target, rows: Rows) -> None:
    """Make the checks of `encode` on whole columns."""
    if len(rows) == 0:
        return
    longest = pc.max(pc.binary_length(rows.body)).as_py()
    if longest > target.body_bytes_max:
        raise MessageTooLargeError(
            "a body", longest, target.body_bytes_max, "shorten it, or raise log.body_bytes_max"
        )
    for name, column in (("TAGS", rows.tag), ("KEYS", rows.keys)):
        if _has_text(column) and pc.any(pc.match_substring_regex(column, _SEPARATORS)).as_py():
            raise PropertyError(name, "a value holds 0x01 or 0x02, which separate properties")
    if _has_text(rows.keys):
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


def _properties(rows: Rows, own: pa.Array | str, *, crc_property: bool) -> pa.Array:
    """Return the properties text of each row: tag, keys, then its own, as `encode_properties` orders them."""
    tags = _pair("TAGS", rows.tag)
    keys = _pair("KEYS", rows.keys)
    texts = pc.binary_join_element_wise(tags, keys, own, "").cast(pa.binary())
    if not crc_property:
        return texts
    room = pa.scalar(reserve_crc_property(b""), pa.binary())
    return pc.binary_join_element_wise(texts, room, pa.scalar(b"", pa.binary()))


def _has_text(column: pa.Array) -> bool:
    """Say whether any value could be more than empty."""
    data = column.buffers()[2]
    return data is not None and data.size > 0


def _pair(name: str, values: pa.Array) -> pa.Array:
    if not _has_text(values):
        return values
    pairs = pc.binary_join_element_wise(pa.scalar(name + "\x01"), values, pa.scalar("\x02"), "")
    return pc.if_else(pc.equal(values, ""), "", pairs)


def _fixed(cells: np.ndarray) -> pa.Array:
    """Return rows of bytes as an Arrow binary column."""
    count, width = cells.shape
    bounds = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(cells))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _values(column: pa.Array) -> memoryview:
    """Return the bytes of a binary column, one value behind the other."""
    if len(column) == 0:
        return memoryview(b"")
    _, bounds, data = column.buffers()
    offsets = np.frombuffer(bounds, np.int32)
    low = int(offsets[column.offset])
    high = int(offsets[column.offset + len(column)])
    return memoryview(data)[low:high]


def receipts(
    done: AppendedBatch, batch: EncodedBatch, status: PutStatus, durability: Durability
) -> pa.Table:
    """Return the receipts of a batch as a table."""
    queues = np.array([lane.queue for lane in batch.lanes], np.int32)
    count = len(done.sizes)
    same = np.zeros(count, np.int32)
    return pa.table(
        {
            "status": pa.array([str(status)]).take(pa.array(same)),
            "log_offset": done.log_offsets,
            "queue": queues[batch.lane_rows] if count else np.zeros(0, np.int32),
            "queue_offset": done.queue_offsets,
            "store_time": pa.array(np.full(count, done.store_time_ms)).cast(TIMESTAMP),
            "size": done.sizes.astype(np.int32),
            "durability": pa.array([str(durability)]).take(pa.array(same)),
        }
    )


def key_hashes(column: pa.Array) -> Int64s:
    """Return Java's `String.hashCode` of each text of a column, 0 for null."""
    texts = pc.fill_null(_cast(column, pa.string(), "key"), "")
    if len(texts) == 0:
        return np.zeros(0, np.int64)
    _, bounds, data = texts.buffers()
    ends = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts = ends[:-1].astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return hash_pieces(raw, starts, np.diff(ends).astype(np.int64)).astype(np.int64)
