"""Fuzz target: one record, a window of records, a client batch; all decoders must agree with each other."""

import contextlib
import struct

from penstock.batch import DispatchBatch
from penstock.columns import Columns
from penstock.javatext import index_hash, java_hash
from penstock.properties import KEYS, TAGS, UNIQ_KEY
from penstock.record import (
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MalformedRecordError,
    RecordFields,
    body_crc,
    decode_batch,
    decode_record,
    encode_batch,
)
from penstock.stored import StoredMessage
from penstock.validity import NO_COVERAGE, Coverage, check, ends_in_own_crc, is_valid
from penstock.walking import walk
from penstock_index.queue_runs import runs_of


def target(data: bytes) -> None:
    with contextlib.suppress(MalformedRecordError):
        parts = decode_batch(data)
        assert decode_batch(encode_batch(parts)) == parts
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
    for coverage in (NO_COVERAGE, Coverage.of([(offset, offset + 1)])):
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
    message = StoredMessage(record, body)
    assert message.all_properties.get(TAGS, "") == message.tag
    for value in (
        message.topic,
        message.keys,
        message.born_host,
        message.store_host,
        message.message_id,
    ):
        assert value is not None
    columns = Columns(record, [0], offset)
    assert columns.first_bad(check_crc=True, coverage=coverage) is None, (
        "the columns' check agrees too"
    )
    _compare(DispatchBatch(columns, offset, offset + 1), 0)


def _window(data: bytes) -> None:
    found = walk(data)
    assert found.stop <= len(data)
    columns = Columns(data, found.positions, 0)
    bad = columns.first_bad(check_crc=False)
    good = columns if bad is None else columns.head(bad)
    batch = DispatchBatch(good, 0, found.stop)
    assert sum(len(run.data) for run in runs_of(batch)) <= 20 * len(good)
    for row in range(len(good)):
        _compare(batch, row)
    for coverage in (NO_COVERAGE, Coverage.of([(0, len(data))])):
        right = good.crc_is_right(coverage).tolist()
        for row in range(len(good)):
            message = batch.message(row)
            is_covered = coverage.has(message.log_offset)
            assert right[row] == is_valid(message.record, message.log_offset, is_covered=is_covered)


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
