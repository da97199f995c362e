"""Messages as Arrow columns, in and out. The only kernel module that imports pyarrow.

Out: positions come from queue entries, header fields are numpy gathers, and a text column is one
gather in C++ (`take` over a view of the mapped bytes, which never leaves this module: an escaped view
would hold the map open and drag its whole buffer along). No Python object is made for a row.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from penstock.columns import Buffer, Columns
from penstock.contracts import QueueIndex
from penstock.errors import ConfigError, CorruptionError, MissingExtraError, OffsetError
from penstock.javatext import Bytes, Int64s, distinct_of
from penstock.log import SegmentedLog
from penstock.matching import Wanted
from penstock.properties import CRC32, KEYS, TAGS
from penstock.spans import Limits, Lost, Places, QueueSpan, Rows, Window, merged, refuse_lost
from penstock.texts import RowPieces

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtraError("pyarrow", "arrow", "reading and writing Arrow tables") from error

TIMESTAMP = pa.timestamp("ms", tz="UTC")
# Every column there is, with its type; the first ones are the default.
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queue": pa.int32(),
    "queue_offset": pa.int64(),
    "log_offset": pa.int64(),
    "store_time": TIMESTAMP,
    "born_time": TIMESTAMP,
    "tag": pa.string(),
    "keys": pa.string(),
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

ANY = Wanted()


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the asked columns, or the default; an unknown one is refused."""
    asked = DEFAULT_COLUMNS if columns is None else tuple(columns)
    for name in asked:
        if name not in COLUMNS:
            raise ConfigError(f"there is no column {name!r}; there are: {', '.join(COLUMNS)}")
    return asked


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, COLUMNS[name]) for name in columns])


def table_of(batches: list[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
    """Return batches of these columns as one table."""
    return pa.Table.from_batches(batches, schema_of(columns))


def span_batches(
    log: SegmentedLog,
    index: QueueIndex,
    spans: Sequence[QueueSpan],
    columns: Sequence[str],
    limits: Limits,
    *,
    verify: bool,
    wanted: Wanted = ANY,
    lost: Lost = refuse_lost,
) -> Iterator[pa.RecordBatch]:
    """Return the messages of several stretches of queues as record batches, in the order of the log.

    Args:
        log: the log.
        index: knows the queues.
        spans: what to read; a damaged record is an error.
        columns: the columns to make.
        limits: how large a batch gets.
        verify: check the CRC of every record that is wanted.
        wanted: leaves out the others.
        lost: told of messages that are gone; see `refuse_lost`.
    """
    needs_bodies = verify or "body" in columns
    window, places = Window(log, bodies=needs_bodies), Places(spans)
    makers, schema = [_MAKERS[name] for name in columns], schema_of(columns)
    for rows in merged(log, index, spans, limits, wanted.may_match, lost):
        try:
            with log.lease(int(rows.offsets[0])):
                records = _checked(log, window.records(rows), rows, places, wanted, verify=verify)
                if len(records) == 0:
                    continue
                view = Gather(records.window)
                arrays = [make(records, view) for make in makers]
        except OffsetError as error:
            for span in _gone(spans, rows):
                lost(span, error)
            continue
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _gone(spans: Sequence[QueueSpan], rows: Rows) -> Iterator[QueueSpan]:
    """Return what the entries of a batch stand for, queue by queue."""
    for number in distinct_of(rows.spans):
        ordinals = rows.ordinals[rows.spans == number]
        yield spans[number]._replace(start=int(ordinals[0]), stop=int(ordinals[-1]) + 1)


def _checked(
    log: SegmentedLog,
    records: Columns,
    rows: Rows,
    places: Places,
    wanted: Wanted,
    *,
    verify: bool,
) -> Columns:
    """Return the records that are wanted; a damaged one is an error."""
    bad = records.first_bad(check_crc=False)
    if bad is None:
        other = np.nonzero((records.sizes != rows.sizes) | ~places.are_at(records, rows))[0]
        bad = int(other[0]) if len(other) else None
    if bad is not None:
        raise _damage(log, int(records.log_offsets[bad]))
    if not places.are_shared:
        # Just compared.
        records.topics = places.topics_of(rows)
    if not wanted.is_any:
        matching = wanted.matches(records)
        records = records if matching.all() else records.rows(matching)
    if verify and len(records):
        right = records.crc_is_right(log.coverage)
        if not right.all() and log.renew_coverage():
            right = records.crc_is_right(log.coverage)
        if not right.all():
            raise _damage(log, int(records.log_offsets[np.argmin(right)]))
    return records


def _damage(log: SegmentedLog, offset: int) -> CorruptionError:
    segment = log.find(offset)
    path = segment.path if segment else log.folder
    position = offset - segment.base_offset if segment else offset
    return CorruptionError(
        path, position, "a sound record", "another", "read() passes over it; see penstock verify"
    )


class Gather:
    """Pieces of a buffer as an Arrow column, copied by one C++ `take`."""

    def __init__(self, window: Buffer | Bytes) -> None:
        self._buffer = pa.py_buffer(window)

    def column(self, starts: Int64s, sizes: Int64s, kind: pa.DataType) -> pa.Array:
        """Return pieces as binary or string; `starts` must ascend and pieces must not overlap."""
        count = len(starts)
        if count == 0:
            return pa.array([], kind)
        # piece, gap, piece, gap, ...: offsets of a binary array over the bytes as they lie.
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = starts
        bounds[1::2] = starts + sizes
        around = pa.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), self._buffer]
        )
        pieces = around.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
        if kind == pa.binary():
            return pieces
        try:
            return pieces.cast(kind)
        except pa.ArrowInvalid:
            # Not UTF-8: only a hostile or foreign record; then one by one.
            return pa.array([piece.as_py().decode("utf-8", "replace") for piece in pieces], kind)


def _optional(pieces: RowPieces, count: int) -> pa.Array:
    """Return one text a row, null where a row has no piece."""
    texts = Gather(pieces.data).column(pieces.starts, pieces.sizes, pa.string())
    if len(pieces.rows) == count:
        return texts
    index = np.full(count, -1, np.int32)
    index[pieces.rows] = np.arange(len(pieces.rows), dtype=np.int32)
    return texts.take(pa.array(index, mask=index < 0))


def _topic(records: Columns, _view: Gather) -> pa.Array:
    names, rows = records.topics
    texts = [name.decode("utf-8", "replace") for name in names]
    if len(texts) == 1:
        return pa.repeat(texts[0], len(records))
    return pa.array(texts, pa.string()).take(pa.array(rows))


def _body(records: Columns, view: Gather) -> pa.Array:
    return view.column(records.body_starts, records.body_sizes, pa.binary())


def _properties(records: Columns, _view: Gather) -> pa.Array:
    """Return all properties of each row as a map, in the order of the text, without the record's CRC."""
    pairs = records.properties.without(CRC32.encode())
    counts = np.bincount(pairs.rows, minlength=len(records))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    texts = Gather(pairs.data)
    names = texts.column(pairs.name_starts, pairs.name_sizes, pa.string())
    values = texts.column(pairs.value_starts, pairs.value_sizes, pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


_HEX = np.array([f"{n:02X}".encode() for n in range(256)], "S2").view(np.uint8).reshape(256, 2)


def _message_id(records: Columns, _view: Gather) -> pa.Array:
    """Return offset message ids: hex of the store host and the log offset."""
    sizes = records.store_host_sizes + 8
    ends = np.cumsum(sizes)
    raw = np.empty(int(ends[-1]), np.uint8)
    for width in (8, 20):
        rows = np.nonzero(records.store_host_sizes == width)[0]
        starts = records.store_time_positions[rows] + 8
        to = (ends - sizes)[rows]
        raw[to[:, None] + np.arange(width)] = records.raw[starts[:, None] + np.arange(width)]
        offsets = records.log_offsets[rows].astype(">i8").view(np.uint8).reshape(-1, 8)
        raw[to[:, None] + width + np.arange(8)] = offsets
    text: Bytes = _HEX[raw].reshape(-1)
    bounds = np.concatenate([[0], ends * 2]).astype(np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(records), buffers)


def _number(name: str, kind: pa.DataType) -> Callable[[Columns, Gather], pa.Array]:
    def make(records: Columns, _view: Gather) -> pa.Array:
        return pa.array(getattr(records, name)).cast(kind)

    return make


_MAKERS: dict[str, Callable[[Columns, Gather], pa.Array]] = {
    "topic": _topic,
    "queue": _number("queues", pa.int32()),
    "queue_offset": _number("queue_offsets", pa.int64()),
    "log_offset": _number("log_offsets", pa.int64()),
    "store_time": _number("store_times_ms", TIMESTAMP),
    "born_time": _number("born_times_ms", TIMESTAMP),
    "tag": lambda records, _: _optional(records.properties.named(TAGS.encode()), len(records)),
    "keys": lambda records, _: _optional(records.properties.named(KEYS.encode()), len(records)),
    "body": _body,
    "properties": _properties,
    "flag": _number("flags", pa.int32()),
    "sys_flag": _number("sys_flags", pa.int32()),
    "reconsume_times": _number("reconsume_times", pa.int32()),
    "prepared_offset": _number("prepared_offsets", pa.int64()),
    "message_id": _message_id,
    "size": _number("sizes", pa.int32()),
    "body_size": _number("body_sizes", pa.int32()),
}
assert set(_MAKERS) == set(COLUMNS)
