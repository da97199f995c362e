"""Messages as Arrow columns, in and out. The only kernel module that imports pyarrow.

Out: positions come from queue entries, header fields are numpy gathers, and a text column is one
gather in C++ (`take` over a view of the mapped bytes, which never leaves this module: an escaped view
would hold the map open and drag its whole buffer along). No Python object is made for a row.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from penstock.columns import Bools, Buffer, Columns
from penstock.contracts import QueueIndex
from penstock.errors import ConfigError, CorruptionError, MissingExtraError
from penstock.fetch import Place
from penstock.javatext import Bytes, Int64s
from penstock.log import SegmentedLog
from penstock.properties import KEYS, TAGS
from penstock.record import FIXED_SIZE
from penstock.texts import Pieces

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

# One batch spans at most so many bytes of log (offsets into a view are int32) and so many rows.
_SPAN_BYTES = 256 << 20
_ROWS = 65_536


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


def queue_table(
    log: SegmentedLog,
    index: QueueIndex,
    topic: str,
    queue: int,
    start: int,
    stop: int,
    columns: Sequence[str] | None,
    *,
    verify: bool,
) -> pa.Table:
    """Return the messages [start, stop) of a queue; missing and damaged ones are an error."""
    asked = check_columns(columns)
    batches = queue_batches(log, index, topic, queue, start, stop, asked, verify=verify)
    return pa.Table.from_batches(list(batches), schema_of(asked))


def queue_batches(
    log: SegmentedLog,
    index: QueueIndex,
    topic: str,
    queue: int,
    start: int,
    stop: int,
    columns: Sequence[str],
    *,
    verify: bool,
    rows: int = _ROWS,
) -> Iterator[pa.RecordBatch]:
    """Return the messages [start, stop) of a queue as record batches of at most `rows` rows."""
    at = start
    while at < stop:
        entries = index.entries(topic, queue, at, min(at + rows, stop))
        count = len(entries.sizes)
        if count == 0:
            # A whole queue file is missing.
            at = index.resume_at(topic, queue, at)
            continue
        present = np.nonzero(entries.sizes)[0]
        offsets, sizes = entries.log_offsets[present], entries.sizes[present]
        _check_order(log, topic, queue, offsets, sizes)
        for low, high in _spans(log, offsets, sizes):
            span = slice(low, high)
            place = Place.of(topic, queue), at + present[span]
            yield _span_batch(log, offsets[span], sizes[span], columns, place, verify=verify)
        at += count


def _check_order(log: SegmentedLog, topic: str, queue: int, offsets: Int64s, sizes: Int64s) -> None:
    """Refuse entries that do not point forwards, each behind the one before: they are damaged."""
    wrong = (offsets < 0) | (offsets >= log.next_free_base()) | (sizes < FIXED_SIZE)
    wrong[1:] |= offsets[1:] - sizes[:-1] < offsets[:-1]
    if wrong.any():
        at = int(offsets[np.argmax(wrong)])
        path = log.folder.parent / "consumequeue" / topic / str(queue)
        raise CorruptionError(
            path, -1, "entries in the order of the log", f"one that points to {at}",
            "open the store for writing once, which mends its queues; see penstock verify",
        )  # fmt: skip


def _spans(log: SegmentedLog, offsets: Int64s, sizes: Int64s) -> Iterator[tuple[int, int]]:
    """Cut ascending positions where a segment ends, or where a span grows too long."""
    low = 0
    while low < len(offsets):
        first = int(offsets[low])
        segment = log.find(first)
        limit = min(first + _SPAN_BYTES, segment.end_offset if segment else first + 1)
        high = low + int(np.searchsorted(offsets[low:] + sizes[low:], limit, side="right"))
        high = max(high, low + 1)
        yield low, high
        low = high


def _span_batch(
    log: SegmentedLog,
    offsets: Int64s,
    sizes: Int64s,
    columns: Sequence[str],
    place: tuple[Place, Int64s],
    *,
    verify: bool,
) -> pa.RecordBatch:
    base = int(offsets[0])
    with log.lease(base):
        window = log.read(base, int(offsets[-1] + sizes[-1]) - base)
        records = Columns(window, offsets - base, base)
        _check(log, records, sizes, place, verify=verify)
        view = Gather(window)
        arrays = [_MAKERS[name](records, view) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _check(
    log: SegmentedLog,
    records: Columns,
    sizes: Int64s,
    place: tuple[Place, Int64s],
    *,
    verify: bool,
) -> None:
    bad = records.first_bad(check_crc=False)
    if bad is None:
        other = np.nonzero((records.sizes != sizes) | ~_are_at(records, *place))[0]
        bad = int(other[0]) if len(other) else None
    if bad is None and verify:
        bad = records.first_bad(check_crc=True)
    if bad is not None:
        offset = int(records.log_offsets[bad])
        segment = log.find(offset)
        path = segment.path if segment else log.folder
        position = offset - segment.base_offset if segment else offset
        raise CorruptionError(
            path,
            position,
            "a sound record",
            "another",
            "read() passes over it; see penstock verify",
        )


def _are_at(records: Columns, place: Place, ordinals: Int64s) -> Bools:
    """Return which sound records belong to these ordinals of a queue: its entries have no checksum."""
    if place.is_shared:
        return np.ones(len(records), np.bool_)
    names, rows = records.topics
    is_topic = np.array([name == place.topics[1][2:] for name in names], np.bool_)
    right: Bools = is_topic[rows]
    right &= (records.queues == place.queue) & (records.queue_offsets == ordinals)
    return right


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


def _optional(pieces: Pieces, count: int) -> pa.Array:
    """Return one text a row, null where a row has no piece."""
    texts = Gather(pieces.data).column(pieces.starts, pieces.sizes, pa.string())
    index = np.full(count, -1, np.int32)
    index[pieces.rows] = np.arange(len(pieces.rows), dtype=np.int32)
    return texts.take(pa.array(index, mask=index < 0))


def _topic(records: Columns, _view: Gather) -> pa.Array:
    names, rows = records.topics
    texts = pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return texts.take(pa.array(rows))


def _body(records: Columns, view: Gather) -> pa.Array:
    return view.column(records.body_starts, records.body_sizes, pa.binary())


def _properties(records: Columns, _view: Gather) -> pa.Array:
    """Return all properties of each row as a map, in the order of the text."""
    pairs = records.properties
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
