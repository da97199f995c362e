"""Returns messages as Arrow columns. Besides `from_arrow`, the only kernel module that imports pyarrow.

Positions come from queue entries. The compiled kernel compares each record with its entry, and builds each column in
one pass over the records, as Arrow buffers. No Python object is created per row, and no view of a mapped file leaves
this module, since it would keep the mapping open.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock import _kernel
from penstock.contracts import QueueReader
from penstock.errors import CorruptionError, MissingExtraError, OffsetError
from penstock.escape import get_logger
from penstock.format.arrow_schema import COLUMNS, ROW_FIELDS, schema_of
from penstock.format.columns import ROW, RecordColumns
from penstock.format.hashes import distinct_of
from penstock.format.properties import CRC32, KEYS, TAGS
from penstock.log.record_reader import QueuePosition
from penstock.log.scan import quarantined_at
from penstock.log.segmented_log import SegmentedLog
from penstock.read.filters import RowFilter
from penstock.read.spans import (
    Corrupt,
    EntryRows,
    Limits,
    Lost,
    QueueSpan,
    Window,
    merged,
    refuse_corrupt,
    refuse_lost,
)

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise MissingExtraError("pyarrow", "arrow", "reading and writing Arrow tables") from error

logger = get_logger(__name__)

ANY = RowFilter()


def span_batches(
    log: SegmentedLog,
    index: QueueReader,
    spans: Sequence[QueueSpan],
    columns: Sequence[str],
    limits: Limits,
    *,
    verify: bool,
    wanted: RowFilter = ANY,
    lost: Lost = refuse_lost,
    corrupt: Corrupt = refuse_corrupt,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges of queues as record batches, in the order of the log.

    Args:
        log: the log.
        index: the queue index.
        spans: the ranges to read.
        columns: the columns to return.
        limits: the maximum size of a batch.
        verify: check the CRC of every matching record.
        wanted: the filter that records must match.
        lost: called with messages that were deleted; see `refuse_lost`.
        corrupt: called with the error of a corrupt record that is not quarantined; it is left out unless that raises.
    """
    needs_bodies = verify or "body" in columns
    window = Window(log, bodies=needs_bodies)
    places = [QueuePosition.of(span.topic, span.queue) for span in spans]
    makers, schema = [_MAKERS[name] for name in columns], schema_of(columns)
    for rows in merged(log, index, spans, limits, wanted.may_match, lost):
        try:
            with log.lease(int(rows.offsets[0])):
                left = _without_quarantined(log, rows)
                if len(left.offsets) == 0:
                    continue
                records = _read_checked(log, window, left, places, wanted, corrupt, verify=verify)
                if len(records) == 0:
                    continue
                arrays = [make(records) for make in makers]
        except OffsetError as error:
            for span in _spans_of(spans, rows):
                lost(span, error)
            continue
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _without_quarantined(log: SegmentedLog, rows: EntryRows) -> EntryRows:
    """Return the entries of a batch that do not point into a quarantined range."""
    for noted in log.quarantined.values():
        kept = (rows.offsets < noted.start) | (rows.offsets >= noted.stop)
        if not kept.all() and quarantined_at(log, noted.start):
            logger.warning(
                "messages left out, because they are quarantined: %d", int((~kept).sum())
            )
            rows = EntryRows(*(column[kept] for column in rows))
    return rows


def _spans_of(spans: Sequence[QueueSpan], rows: EntryRows) -> Iterator[QueueSpan]:
    """Yield the ranges of messages that the entries of a batch belong to, queue by queue."""
    for number in distinct_of(rows.spans):
        ordinals = rows.ordinals[rows.spans == number]
        yield spans[number]._replace(start=int(ordinals[0]), stop=int(ordinals[-1]) + 1)


def _read_checked(
    log: SegmentedLog,
    window: Window,
    rows: EntryRows,
    places: list[QueuePosition],
    wanted: RowFilter,
    corrupt: Corrupt,
    *,
    verify: bool,
) -> RecordColumns:
    """Return the matching records of a batch; calls `corrupt` for each corrupt one, and for one of another queue."""
    memory, positions = window.read(rows)
    # With a filter, only the matching records must be valid, so their CRC is checked after filtering.
    at_once = verify and wanted.is_any

    def parse_from(first: int) -> tuple[bytearray, int]:
        part = rows.part(first, len(rows.offsets))
        return _kernel.entry_rows(
            memory, positions[first:], part.offsets, part.sizes, part.ordinals, part.spans, places,
            log.coverage.packed if at_once else None,
        )  # fmt: skip

    found, bad = parse_from(0)
    if bad >= 0 and at_once and log.renew_coverage():
        found, bad = parse_from(0)
    parts, good, first = list[bytearray](), np.ones(len(rows.offsets), np.bool_), 0
    while bad >= 0:
        corrupt(_corruption(log, int(rows.offsets[first + bad])))
        good[first + bad] = False
        parts.append(found[: bad * ROW.itemsize])
        first += bad + 1
        found, bad = parse_from(first)
    raw = b"".join([*parts, found]) if parts else found
    records = RecordColumns(memory, np.frombuffer(raw, ROW.dtype), rows.offsets[good])
    if wanted.is_any:
        return records
    matching = wanted.matches(records)
    records = records if matching.all() else records.rows(matching)
    if verify:
        right = records.are_valid(log.coverage)
        if not right.all() and log.renew_coverage():
            right = records.are_valid(log.coverage)
        for offset in records.log_offsets[~right].tolist():
            corrupt(_corruption(log, offset))
        records = records if right.all() else records.rows(right)
    return records


def _corruption(log: SegmentedLog, offset: int) -> CorruptionError:
    segment = log.find(offset)
    path = segment.path if segment else log.folder
    position = offset - segment.base_offset if segment else offset
    return CorruptionError(
        path,
        position,
        "a valid record of the queue entry",
        "other bytes",
        "run penstock verify for details",
    )


Maker = Callable[[RecordColumns], pa.Array]


def _strings(count: int, column: tuple[bytes, bytes], kind: pa.DataType) -> pa.Array:
    """Return a column without nulls, given offsets and bytes."""
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, column)])


def _text(column_of: Callable[[Any, Any], tuple[bytes, bytes]], kind: pa.DataType) -> Maker:
    """Return a function that builds a column without nulls from what the kernel makes of a batch."""
    return lambda records: _strings(len(records), column_of(records.window, records.fields), kind)


def _property(name: str) -> Maker:
    """Return a function that builds the column of one property, null for records without it."""

    def make(records: RecordColumns) -> pa.Array:
        column = _kernel.property_column(records.window, records.fields, name.encode())
        buffers = [None if part is None else pa.py_buffer(part) for part in column]
        return pa.Array.from_buffers(pa.string(), len(records), buffers)

    return make


def _keys(records: RecordColumns) -> pa.Array:
    """Return the words of KEYS as lists, null for records without it; joined by blanks they are its text again."""
    return pc.split_pattern(_property(KEYS)(records), " ")


def _properties(records: RecordColumns) -> pa.Array:
    """Return all properties of each row as a map, in the order of the text, without the record's CRC."""
    firsts, names, values = _kernel.pair_columns(records.window, records.fields, CRC32.encode())
    count = len(names[0]) // 4 - 1
    offsets = pa.Array.from_buffers(pa.int32(), len(records) + 1, [None, pa.py_buffer(firsts)])
    keys, items = (_strings(count, column, pa.string()) for column in (names, values))
    return pa.MapArray.from_arrays(offsets, keys, items)


def _number(name: str) -> Maker:
    """Return a function that builds the column of one numeric field of the same width."""
    field, kind = ROW_FIELDS.get(name, name), COLUMNS[name]

    def make(records: RecordColumns) -> pa.Array:
        numbers = pa.py_buffer(np.ascontiguousarray(records.fields[field]))
        return pa.Array.from_buffers(kind, len(records), [None, numbers])

    return make


def _prepared_offset(records: RecordColumns) -> pa.Array:
    """Return the column without marks of atomic batches, which are negative."""
    return pa.array(np.maximum(records.prepared_offsets, 0))


_TEXTS: dict[str, Maker] = {
    "topic": _text(_kernel.topic_column, pa.string()),
    "tag": _property(TAGS),
    "keys": _keys,
    "body": _text(_kernel.body_column, pa.binary()),
    "properties": _properties,
    "message_id": _text(_kernel.message_ids, pa.string()),
    "prepared_offset": _prepared_offset,
}
_MAKERS = {name: _TEXTS.get(name) or _number(name) for name in COLUMNS}
# A field and its column have the same width, so the column is the field's memory.
assert all(
    ROW[ROW_FIELDS.get(name, name)].itemsize == COLUMNS[name].bit_width // 8
    for name in COLUMNS.keys() - _TEXTS.keys()
)
