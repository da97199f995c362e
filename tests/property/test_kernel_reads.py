"""The kernel's way out of the log, scan, rows, messages and columns, against `penstock.format.record` and the plain check.

Every window lies before a page that nobody may read, so that a read behind its end ends the process.
"""

import copy
import itertools
import pickle
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.damage.stores import is_at
from tests.fuzz.records import compare_message, scanned_plainly
from tests.guard import guarded
from tests.lanes import examples

from penstock import _kernel
from penstock.format.arrow_schema import COLUMNS
from penstock.format.columns import ROW, RecordColumns
from penstock.format.properties import CRC32
from penstock.format.record import (
    MalformedRecordError,
    RecordFields,
    body_crc,
    decode_record,
    encode_record,
)
from penstock.format.validity import NO_COVERAGE, Coverage, check, ends_in_own_crc
from penstock.log.record_reader import QueuePosition
from penstock.message import StoredMessage
from penstock.read.to_arrow import _MAKERS

IPV4, IPV6 = b"\x7f\0\0\1\0\0\x1f\x90", bytes(15) + b"\1" + b"\0\0\x1f\x90"
HOSTS = st.sampled_from([IPV4, IPV6])
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Text, what is no UTF-8, characters cut short, and separators where they do not belong.
WORDS = st.one_of(
    st.sampled_from([
        b"TAGS", b"KEYS", b"UNIQ_KEY", b"__CRC32#", b"a", b"", b"k1 k2", b"\xff", b"\xe2\x82", b"\xf0\x9f\x98",
        "ключ".encode(), "\U0001f600".encode(), b"\xed\xa0\x80", b"\x01", b" ", b"a\0",
    ]),
    st.binary(max_size=6),
)  # fmt: skip
PAIRS = st.lists(st.tuples(WORDS, WORDS), max_size=5).map(
    lambda pairs: b"".join(b"%s\x01%s\x02" % pair for pair in pairs)
)
TEXTS = st.one_of(PAIRS, PAIRS.map(lambda text: text.removesuffix(b"\x02")), st.binary(max_size=40))
TOPICS = st.one_of(
    st.sampled_from([b"t", b"topic", b"long-" * 26, b"longer" * 60, b"\xff" * 3, "тема".encode()]),
    st.binary(min_size=1, max_size=140),
)
FIELDS = st.builds(
    RecordFields, topic=TOPICS, body=st.binary(max_size=300), queue=I32, flag=I32, queue_offset=I64,
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x80]), born_time_ms=I64, born_host=HOSTS, store_time_ms=I64,
    store_host=HOSTS, reconsume_times=I32, prepared_offset=I64, properties=TEXTS, is_v2=st.booleans(),
)  # fmt: skip
LOGS = st.lists(st.tuples(FIELDS, st.booleans()), min_size=1, max_size=5)
BASES = st.sampled_from([0, 4096, (1 << 62) + 7])


def log_of(shapes: list[tuple[RecordFields, bool]], base: int) -> list[bytes]:
    """Return the records one after the other, each with its own log offset."""
    records, at = list[bytes](), base
    for fields, crc_property in shapes:
        placed = attrs.evolve(fields, log_offset=at)
        records.append(encode_record(placed, crc_property=crc_property))
        at += len(records[-1])
    return records


def starts_of(records: list[bytes]) -> Any:
    return np.array([0, *itertools.accumulate(map(len, records))][:-1], np.int64)


def scanned(window: memoryview, base: int, coverage: Coverage, *, crc: bool = True) -> Any:
    rows, stop, state, _ = _kernel.scan(window, base, _kernel.CRC if crc else 0, coverage.packed)
    fields = np.frombuffer(rows, ROW)
    return RecordColumns(window, fields, fields["log_offset"]), stop, state


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(shapes=LOGS, base=BASES)
def test_every_field_of_every_shape_is_what_the_plain_decoder_says(
    shapes: list[tuple[RecordFields, bool]], base: int
) -> None:
    records = log_of(shapes, base)
    decoded = [decode_record(record) for record in records]
    window, starts = guarded(b"".join(records)), starts_of(records)
    columns, stop, state = scanned(window, base, NO_COVERAGE)
    assert (columns.positions.tolist(), stop, state) == (starts.tolist(), len(window), _kernel.MORE)
    assert columns.fields.tobytes() == RecordColumns.parse(window, starts, base).fields.tobytes()
    compare_columns(columns, decoded)
    assert columns.end_in_own_crc().tolist() == [
        len(f.properties) >= 20 and ends_in_own_crc(r)
        for f, r in zip(decoded, records, strict=True)
    ]
    sizes = np.array([len(record) for record in records], np.int64)
    messages = _kernel.messages(window, base, starts + base, sizes, starts, None, 0, b"")
    for message, record, fields in zip(messages, records, decoded, strict=True):
        assert message == StoredMessage(record)
        assert message.record == record
        compare_message(message, fields)


def compare_columns(columns: RecordColumns, decoded: list[RecordFields]) -> None:
    for column, field in (
        ("queues", "queue"), ("queue_offsets", "queue_offset"),
        ("store_times_ms", "store_time_ms"), ("flags", "flag"),
        ("sys_flags", "sys_flag"), ("reconsume_times", "reconsume_times"), ("prepared_offsets", "prepared_offset"),
        ("sizes", "size"),
    ):  # fmt: skip
        assert getattr(columns, column).tolist() == [getattr(f, field) for f in decoded], column
    for column, field in (
        ("log_offset", "log_offset"),
        ("born_ms", "born_time_ms"),
        ("crc", "crc"),
    ):
        assert columns.fields[column].tolist() == [getattr(f, field) for f in decoded], column
    names, which = columns.topics
    assert [names[number] for number in which.tolist()] == [f.topic for f in decoded]
    compare_arrow(columns, decoded)


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def pairs_of(raw: bytes) -> list[tuple[str, str]]:
    """Return all pairs of a properties text but a record's CRC, in order."""
    pairs = [piece.partition(b"\x01")[::2] for piece in raw.split(b"\x02")]
    return [(text(n), text(v)) for n, v in pairs if n and v and n != CRC32.encode()]


def compare_arrow(columns: RecordColumns, decoded: list[RecordFields]) -> None:
    """Hold every Arrow column against the plain decoder's fields."""
    made = {name: make(columns) for name, make in _MAKERS.items()}
    for name, column in made.items():
        column.validate(full=True)
        assert column.type == COLUMNS[name]
    got = {
        name: (column.cast("int64") if "time" in name and name != "reconsume_times" else column)
        for name, column in made.items()
    }
    for row, fields in enumerate(decoded):
        pairs = pairs_of(fields.properties)
        host = fields.store_host + fields.log_offset.to_bytes(8, "big", signed=True)
        expected = {
            "topic": text(fields.topic), "queue": fields.queue, "queue_offset": fields.queue_offset,
            "log_offset": fields.log_offset, "store_time": fields.store_time_ms, "born_time": fields.born_time_ms,
            "tag": dict(pairs).get("TAGS"), "keys": None if (keys := dict(pairs).get("KEYS")) is None else keys.split(" "), "body": fields.body,
            "properties": pairs, "flag": fields.flag, "sys_flag": fields.sys_flag,
            "reconsume_times": fields.reconsume_times, "prepared_offset": max(fields.prepared_offset, 0),
            "message_id": host.hex().upper(), "size": fields.size, "body_size": len(fields.body),
        }  # fmt: skip
        assert {name: column[row].as_py() for name, column in got.items()} == expected


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(
    shapes=LOGS,
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    cut=st.integers(0, 120),
    is_covered=st.booleans(),
    is_mended=st.booleans(),
    wrong=st.one_of(st.none(), st.sampled_from([0, 0, 1, 2, 3])),
)
def test_what_is_wrong_is_refused_as_the_plain_check_does(
    shapes: list[tuple[RecordFields, bool]],
    flips: list[tuple[float, int]],
    cut: int,
    is_covered: bool,
    is_mended: bool,
    wrong: int | None,
) -> None:
    records = log_of(shapes, 0)
    whole = bytearray(b"".join(records))
    for share, bits in flips:
        whole[int(share * len(whole))] ^= bits
    if is_mended:
        mend(whole, records)
    data = bytes(whole[: max(len(whole) - cut, 0)])
    coverage = Coverage.of([(0, len(data))]) if is_covered else NO_COVERAGE
    window = guarded(data)
    columns, stop, state = scanned(window, 0, coverage)
    assert (columns.positions.tolist(), stop, state) == scanned_plainly(data, coverage)
    check_entries(window, data, records, coverage, wrong)
    # Whatever is valid by its lengths is taken apart, and whatever is not is none.
    starts = starts_of(records)
    parsed = RecordColumns.parse(window, starts, 0)
    for row, (start, record) in enumerate(zip(starts.tolist(), records, strict=True)):
        there = data[start:]
        try:
            size = int.from_bytes(there[:4], "big", signed=True)
            fields = decode_record(there[: max(size, 0)])
        except MalformedRecordError:
            assert not parsed.valid[row]
            continue
        assert parsed.valid[row]
        compare_arrow(parsed.rows(slice(row, row + 1)), [fields])
        assert len(record) > 0


def mend(whole: bytearray, records: list[bytes]) -> None:
    """Put the right CRC over each body that can be found, so that more than CRCs is reached."""
    for start, record in zip(starts_of(records).tolist(), records, strict=True):
        try:
            fields = decode_record(bytes(whole[start : start + len(record)]))
        except MalformedRecordError:
            continue
        whole[start + 8 : start + 12] = body_crc(fields.body).to_bytes(4, "big")


def check_entries(
    window: memoryview, data: bytes, records: list[bytes], coverage: Coverage, wrong: int | None
) -> None:
    """Read by entries that are as the records were, but for one ordinal: what is there must be what they say."""
    starts, fields = starts_of(records), [decode_record(record) for record in records]
    sizes = np.array([len(record) for record in records], np.int64)
    ordinals = np.array([f.queue_offset for f in fields], np.int64)
    if wrong is not None:
        ordinals[wrong % len(ordinals)] ^= 1
    first = fields[0]
    for topic in (None, first.topic):
        place = QueuePosition(topic, first.queue)
        expected = list[StoredMessage]()
        for start, size, ordinal in zip(
            starts.tolist(), sizes.tolist(), ordinals.tolist(), strict=True
        ):
            record = data[start : start + size]
            try:
                check(record, start, is_covered=coverage.has(start))
            except MalformedRecordError:
                break
            if not is_at(record, *place, ordinal):
                break
            expected.append(StoredMessage(record))
        found = _kernel.messages(window, 0, starts, sizes, ordinals, *place, coverage.packed)
        assert found == expected
        one = _kernel.message(window[: sizes[0]], 0, *place, int(ordinals[0]), coverage.packed)
        assert one == (expected[0] if expected else None)
        rows, bad = _kernel.entry_rows(
            window, starts, starts, sizes, ordinals, np.zeros_like(starts), [place]
        )
        assert bad == -1 or bad >= len(expected), "CRCs are another check"
        valid = RecordColumns(window, np.frombuffer(rows, ROW), starts).are_valid(coverage)
        assert int(np.argmin(np.append(valid[: bad if bad >= 0 else None], False))) == len(expected)


HOSTILE_ROWS = st.lists(
    st.tuples(*(
        st.one_of(st.sampled_from([0, 1, 91, 4096, -1]), I64 if at < 6 else I32)
        for at in range(len(ROW.names or ()))
    )),
    max_size=4,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(rows=HOSTILE_ROWS, size=st.sampled_from([0, 7, 91, 300]))
def test_rows_that_say_anything_lead_nowhere_outside_of_the_window(rows: Any, size: int) -> None:
    window, fields = guarded(b"\x01\x02" * (size // 2)), np.array(rows, ROW)
    columns = RecordColumns(window, fields, np.zeros(len(fields), np.int64))
    for make in _MAKERS.values():
        assert len(make(columns)) == len(fields)
    names, which = columns.topics
    assert all(len(name) <= size for name in names)
    assert len(which) == len(fields)
    columns.end_in_own_crc()
    columns.are_valid()
    properties = columns.properties
    assert len(properties.indexed().tag_codes) == len(fields)
    for found in (properties.named(b"TAGS"), properties.indexed().keys, properties.tag_keys()):
        assert len(found.rows) <= len(fields) * size
    places: list[Any] = [(b"t", 0)]
    numbers = np.ascontiguousarray(fields["position"]), np.ascontiguousarray(fields["queue_offset"])
    for base in (0, 1, 4096, (1 << 63) - 1):
        _kernel.messages(window, base, *numbers, numbers[0], None, 0, b"")
    _kernel.entry_rows(window, *numbers, *numbers, numbers[0], places)
    RecordColumns.parse(window, numbers[0], 0)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    steps=st.lists(st.tuples(st.integers(-20, 40), st.integers(-5, 60)), max_size=8),
    limit=st.integers(0, 300),
    room=st.integers(0, 200),
    gap=st.integers(0, 30),
)
def test_a_run_of_entries_is_what_its_definition_says(
    steps: list[tuple[int, int]], limit: int, room: int, gap: int
) -> None:
    offsets, sizes, at = list[int](), list[int](), 0
    for step, size in steps:
        offsets.append(at + step)
        sizes.append(size)
        at += step + size
    count, end = 0, 0
    for offset, size in zip(offsets, sizes, strict=True):
        if offset < 0 or size <= 0 or offset + size > limit:
            break
        if count and not (0 <= offset - end <= gap and offset + size - offsets[0] <= room):
            break
        count, end = count + 1, offset + size
    found = _kernel.run_of(np.array(offsets, np.int64), np.array(sizes, np.int64), limit, room, gap)
    assert found == (count, end)


def is_torn_plainly(record: bytes, at: int) -> bool:
    """Say whether topic or properties look like a sector that was never written; see `record.h`."""
    fields = decode_record(record)
    looks = fields.topic.endswith(b"\0") or fields.properties.endswith(b"\0")
    text_at = at + len(record) - len(fields.properties)
    for sector in range(-(-text_at // 512) * 512, at + len(record) - 511, 512):
        looks = looks or record[sector - at : sector - at + 512] == bytes(512)
    has_crc = len(fields.properties) >= 20 and ends_in_own_crc(record)
    return looks and not has_crc


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    zeros=st.sampled_from([0, 1, 511, 512, 700, 1024, 1600]),
    before=st.integers(0, 700),
    after=st.sampled_from([b"", b"x", b"x" * 600]),
    topic=st.sampled_from([b"t", b"t\0"]),
    crc_property=st.booleans(),
    base=st.sampled_from([0, 100, 4000]),
    torn_from=st.sampled_from([0, 100, 5000]),
)
def test_a_torn_sector_is_seen_as_its_definition_says(
    zeros: int, before: int, after: bytes, topic: bytes, crc_property: bool, base: int, torn_from: int
) -> None:  # fmt: skip
    properties = b"a\x01" + b"v" * before + bytes(zeros) + after
    fields = RecordFields(topic=topic, body=b"b", properties=properties, log_offset=base)
    record = encode_record(fields, crc_property=crc_property)
    checks = _kernel.CRC | _kernel.TORN
    _, stop, state, _ = _kernel.scan(guarded(record), base, checks, b"", torn_from, 512)
    is_torn = base >= torn_from and is_torn_plainly(record, base)
    assert (stop == 0, state == _kernel.INVALID) == (is_torn, is_torn)


def test_a_message_is_one_record_and_stays_what_it_is() -> None:
    fields = RecordFields(topic=b"t", body=b"b" * 100_000, properties=b"KEYS\x01a b\x02")
    record = encode_record(fields)
    message = StoredMessage(record)
    found = _kernel.message(guarded(record), 0, b"t", 0, 0, b"")
    assert found == message == pickle.loads(pickle.dumps(message)) == copy.copy(message)
    assert message.body is message.body
    assert message != record
    assert repr(message) == (
        "StoredMessage(topic='t', queue=0, queue_offset=0, log_offset=0, keys=('a', 'b'), "
        "store_time_ms=0 (1970-01-01T00:00:00.000+00:00), body=b'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb'... (100000 bytes))"
    )
    assert message.all_properties is not message.all_properties, "nobody changes another's"
    for name in ("body", "queue", "record"):
        with pytest.raises(AttributeError):
            setattr(message, name, 1)


def test_a_message_of_bytes_that_are_none_is_refused() -> None:
    record = encode_record(RecordFields(topic=b"t", body=b"body"))
    for broken in (
        b"",
        record[:-1],
        record + b"\0",
        b"\0" * 91,
        record[:84] + b"\xff" + record[85:],
    ):
        with pytest.raises(MalformedRecordError):
            StoredMessage(broken)
    with pytest.raises(TypeError):
        StoredMessage(None)  # type: ignore[arg-type] # that is the test
    empty = StoredMessage.__new__(StoredMessage)
    assert (empty.body, empty.topic, empty.size, empty.all_properties) == (b"", "", 91, {})
