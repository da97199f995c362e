"""Fuzz target: one record, a window of records; all decoders must agree with each other."""

import contextlib
import struct

import numpy as np

from penstock import _kernel
from penstock.contracts.dispatcher import DispatchBatch
from penstock.format.columns import ROW, RecordColumns
from penstock.format.hashes import index_hash, java_hash
from penstock.format.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from penstock.format.record import (
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MalformedRecordError,
    RecordFields,
    body_crc,
    decode_host,
    decode_record,
)
from penstock.format.validity import NO_COVERAGE, Coverage, check, ends_in_own_crc, is_valid
from penstock.message import StoredMessage
from penstock_index.queue_state import runs_of

_LAST = (1 << 63) - 1
SAME_NAMES = (
    "body", "crc", "queue", "flag", "queue_offset", "log_offset", "sys_flag", "born_time_ms", "store_time_ms",
    "reconsume_times", "size",
)  # fmt: skip


def target(data: bytes) -> None:
    _window(data)
    if len(data) >= FIXED_SIZE:
        _record(data)
        _record(mended(data))


def mended(data: bytes) -> bytes:
    """Return the record with the size and the body CRC that it should have, so that more is reached."""
    record = bytearray(data)
    struct.pack_into(">i", record, 0, len(record))
    with contextlib.suppress(MalformedRecordError):
        struct.pack_into(">i", record, 8, body_crc(decode_record(bytes(record)).body))
    return bytes(record)


def _record(record: bytes) -> None:
    offset = struct.unpack_from(">q", record, 28)[0]
    for coverage in (NO_COVERAGE, Coverage.of([(offset, min(offset + 1, _LAST))])):
        fields: RecordFields | None = None
        with contextlib.suppress(MalformedRecordError):
            fields = decode_record(record)
        is_covered = coverage.has(offset)
        is_right = fields is not None and body_crc(fields.body) == fields.crc
        if is_covered and fields is not None:
            is_right &= len(fields.properties) >= CRC_PROPERTY_SIZE and ends_in_own_crc(record)
        body: slice | None = None
        with contextlib.suppress(MalformedRecordError):
            body = check(record, offset, is_covered=is_covered)
        assert (body is not None) == is_right, "the check and the plain decoder agree"
        if fields is None or body is None or offset < 0:
            continue
        _whole_record(record, body, offset, fields, coverage)


def _whole_record(
    record: bytes, body: slice, offset: int, fields: RecordFields, coverage: Coverage
) -> None:
    assert record[body] == fields.body
    assert not is_valid(record, offset ^ 1)
    message = StoredMessage(record)
    compare_message(message, fields)
    columns = RecordColumns.parse(record, [0], offset)
    assert columns.are_valid(coverage), "the columns' check agrees too"
    _compare(DispatchBatch(columns, offset, offset + 1), 0)


def _window(data: bytes) -> None:
    """Scan some bytes as a log would be, and by its definition; compare what is found."""
    for crc, coverage in ((0, NO_COVERAGE), (1, NO_COVERAGE), (1, Coverage.of([(0, len(data))]))):
        rows, stop, state, claimed = _kernel.scan(
            data, 0, _kernel.CRC if crc else 0, coverage.packed
        )
        fields = np.frombuffer(rows, ROW)
        found = (fields["position"].tolist(), stop, state)
        assert found == scanned_plainly(data, coverage if crc else None)
        assert claimed == (struct.unpack_from(">i", data, stop)[0] if len(data) - stop >= 8 else 0)
        batch = DispatchBatch(RecordColumns(data, fields, fields["log_offset"]), 0, stop)
        assert sum(len(run.data) for run in runs_of(batch)) <= 20 * len(fields)
        for row in range(len(fields)):
            _compare(batch, row)


def scanned_plainly(data: bytes, coverage: Coverage | None) -> tuple[list[int], int, int]:
    """Do what the kernel's `scan` does; without a coverage no CRC is checked."""
    positions, at = list[int](), 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">ii", data, at)
        if magic == MAGIC_BLANK:
            return positions, at, _kernel.BLANK
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_SIZE:
            return positions, at, _kernel.NONE
        if size > len(data) - at:
            break
        if not is_right_plainly(data[at : at + size], at, coverage):
            return positions, at, _kernel.INVALID
        positions.append(at)
        at += size
    return positions, at, _kernel.MORE


def is_right_plainly(record: bytes, at: int, coverage: Coverage | None) -> bool:
    try:
        if coverage is not None:
            check(record, at, is_covered=coverage.has(at))
        return decode_record(record).log_offset == at
    except MalformedRecordError:
        return False


def compare_message(message: StoredMessage, fields: RecordFields) -> None:
    """Hold every field of a message against the plain decoder's."""
    for name in SAME_NAMES:
        assert getattr(message, name) == getattr(fields, name), name
    # A negative number is a mark of an atomic batch.
    assert message.prepared_offset == max(fields.prepared_offset, 0)
    assert message.topic == fields.topic.decode("utf-8", "replace")
    pairs = decode_properties(fields.properties)
    assert message.all_properties == pairs
    assert list(message.all_properties) == list(pairs)
    assert message.tag == pairs.get(TAGS, "")
    assert message.keys == tuple(key for key in pairs.get(KEYS, "").split(" ") if key)
    for name, host in (("born_host", fields.born_host), ("store_host", fields.store_host)):
        assert getattr(message, name) == decode_host(host)
    offset = fields.log_offset.to_bytes(8, "big", signed=True)
    assert message.message_id == (fields.store_host + offset).hex().upper()
    again = StoredMessage(message.record)
    assert (again, hash(again), again.size) == (message, hash(message), len(again.record))


def _compare(batch: DispatchBatch, row: int) -> None:
    """Compare one row of the columns with the record decoded by itself."""
    message = batch.message(row)
    fields = decode_record(message.record)
    columns = batch.columns
    assert batch.topics[int(batch.topic_rows[row])] == fields.topic
    assert int(columns.store_times_ms[row]) == fields.store_time_ms
    assert int(columns.prepared_offsets[row]) == fields.prepared_offset
    assert int(columns.reconsume_times[row]) == fields.reconsume_times
    try:
        fields.topic.decode()
        fields.properties.decode()
    except UnicodeDecodeError:
        return  # a text that is none is hashed in another way than it is shown; nobody can ask for it
    named = message.all_properties
    if fields.topic != b"SCHEDULE_TOPIC_XXXX":
        assert int(batch.tag_codes[row]) == (java_hash(named[TAGS]) if TAGS in named else 0)
    keys = [named[UNIQ_KEY]] if UNIQ_KEY in named else []
    keys += [word for word in named.get(KEYS, "").split(" ") if word]
    found = batch.keys.hashes[batch.keys.rows == row].tolist()
    assert found == [index_hash(f"{message.topic}#{key}") for key in keys]
