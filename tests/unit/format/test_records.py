"""Records: every vector of the format both ways, many as columns, and what makes one valid: every part, its place, its CRCs."""

import random
import struct
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from penstock import _kernel
from penstock.format.columns import RecordColumns
from penstock.format.record import (
    BLANK,
    COMMIT,
    MAGIC_BLANK,
    PREPARED,
    MalformedRecordError,
    RecordFields,
    body_crc,
    crc_property,
    decode_record,
    encode_host,
    encode_record,
    properties_in,
)
from penstock.format.validity import Coverage, check, ends_in_own_crc, is_valid

COMMON = RecordFields(
    topic=b"TopicTest",
    body=b"hello 0",
    born_time_ms=1_700_000_000_000,
    born_host=encode_host("127.0.0.1:50000"),
    store_time_ms=1_700_000_000_001,
    store_host=encode_host("127.0.0.1:10911"),
    properties=b"KEYS\x01k0 common\x02TAGS\x01TagA\x02UNIQ_KEY\x017F000001000100000000000000000000\x02",
)
A = (
    "000000ae daa320a7 20e809f1 00000000 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 7f000001 0000c350 0000018bcfe56801 7f000001 00002a9f 00000000"
    "0000000000000000 00000007 68656c6c6f2030 09 546f70696354657374 0043"
    "4b455953016b3020636f6d6d6f6e02 544147530154616741 02 554e49515f4b455901374630303030303130"
    "303031303030303030303030303030303030303030303002"
)
IPV6 = attrs.evolve(
    COMMON, born_host=encode_host("[2001:db8::1]:50000"), store_host=encode_host("[::1]:10911")
)
SMALLEST = attrs.evolve(COMMON, topic=b"T", body=b"x", properties=b"")
LONG_TOPIC = attrs.evolve(COMMON, topic=b"t" * 128, body=b"b", properties=b"")
EVERYTHING = attrs.evolve(
    IPV6, queue=3, flag=-7, queue_offset=1 << 40, log_offset=1 << 50, sys_flag=0x1 | COMMIT,
    reconsume_times=5, prepared_offset=1 << 41, is_v2=True,
)  # fmt: skip

RECORDS = {
    "a V1": (COMMON, A),
    "c IPv6": (IPV6, None),
    "d V2": (LONG_TOPIC, None),
    "e smallest": (SMALLEST, "0000005d daa320a7 0cdc1683 00000000 00000000" + "00" * 20
                   + "0000018bcfe56800 7f0000010000c350 0000018bcfe56801 7f00000100002a9f"
                   + "00" * 12 + "00000001 78 01 54 0000"),
    "everything": (EVERYTHING, None),
    "empty body": (attrs.evolve(COMMON, body=b""), None),
    "prepared": (attrs.evolve(COMMON, sys_flag=PREPARED), None),
    "no trailing separator": (attrs.evolve(COMMON, properties=b"TAGS\x01TagA"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_encoded_and_decoded(name: str) -> None:
    fields, expected = RECORDS[name]
    data = encode_record(fields)
    if expected is not None:
        assert data == bytes.fromhex(expected)
    body = check(data, fields.log_offset, is_covered=False)
    decoded = decode_record(data)
    assert data[body] == decoded.body
    assert decoded.size == len(data)
    assert properties_in(data) == fields.properties
    for field in ("topic", "body", "queue", "flag", "queue_offset", "born_time_ms", "born_host",
                  "store_time_ms", "store_host", "reconsume_times", "prepared_offset", "properties"):  # fmt: skip
        assert getattr(decoded, field) == getattr(fields, field), field


def test_sizes_and_flags_of_the_vectors() -> None:
    ipv6 = encode_record(IPV6)
    assert (len(ipv6), decode_record(ipv6).sys_flag) == (198, 0x30)
    assert ipv6[48:68].hex() == "20010db8000000000000000000000001" + "0000c350"
    v2 = encode_record(LONG_TOPIC)
    assert (len(v2), v2[:12].hex()) == (221, "000000dddaa320ab71beeff9")
    assert v2[84:93].hex() == "000000016200807474"
    assert BLANK.pack(68, MAGIC_BLANK).hex() == "00000044cbd43194"


def test_the_crc_property_vector() -> None:
    data = encode_record(COMMON, crc_property=True)
    assert (len(data), data[:4].hex()) == (194, "000000c2")
    assert data[-20:].hex() == "5f5f435243333223013832363136323739393002"
    assert ends_in_own_crc(data)
    assert not ends_in_own_crc(encode_record(COMMON))
    assert crc_property(907060870).hex() == "5f5f4352433332230130373830363037303930" + "02"
    without = attrs.evolve(COMMON, properties=b"TAGS\x01TagA")
    assert b"TagA\x02__CRC32#" in encode_record(without, crc_property=True)
    check(encode_record(without, crc_property=True), 0, is_covered=True)


@pytest.mark.parametrize(
    ("text", "crc"),
    [(b"a", 1756872259), (b"hello", 907060870), (b"Hello RocketMQ", 1774740973), (b"123456789", 1274296614), (b"", 0)],
)  # fmt: skip
def test_body_crcs(text: bytes, crc: int) -> None:
    assert body_crc(text) == crc


def test_every_cut_of_a_record_is_malformed_not_a_crash() -> None:
    data = encode_record(EVERYTHING)
    for size in range(len(data)):
        with pytest.raises(MalformedRecordError):
            decode_record(data[:size])
    chance = random.Random(3)
    for _ in range(3000):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode_record(bytes(broken))
        except MalformedRecordError:
            continue


# --- many records as columns; that they say what the decoder does is a property


def records_of(*fields: RecordFields) -> tuple[bytes, list[int]]:
    """Return records one behind the other, and where each begins."""
    records = [encode_record(each) for each in fields]
    return b"".join(records), [sum(map(len, records[:row])) for row in range(len(records))]


def test_a_row_that_is_no_record_is_not_valid_and_says_no_more() -> None:
    record = encode_record(RecordFields(topic=b"t", body=b"x", queue=5))
    columns = RecordColumns.parse(record + b"\xff" * 200, [0, len(record)], 0)
    assert columns.valid.tolist() == [True, False]
    assert columns.queues.tolist()[0] == 5
    assert columns.are_valid().tolist() == [True, False]


def test_a_row_at_another_place_than_it_says_is_bad() -> None:
    data, starts = records_of(*(RecordFields(topic=b"t", body=b"x", log_offset=1000 + 93 * n) for n in range(3)))  # fmt: skip
    assert RecordColumns.parse(data, starts, 1000).are_valid().all()
    moved = RecordColumns.parse(data, starts, 0, log_offsets=np.array([1000, 7, 1186]))
    assert moved.are_valid(check_crc=False).tolist() == [True, False, True]


def test_a_crc_is_looked_at_only_where_that_is_asked_for() -> None:
    record = bytearray(encode_record(RecordFields(topic=b"t", body=b"abc")))
    record[89] ^= 1
    columns = RecordColumns.parse(bytes(record), [0], 0)
    assert (bool(columns.are_valid(check_crc=False)), bool(columns.are_valid())) == (True, False)


def test_rows_are_picked_by_number_mask_or_range_with_their_offsets() -> None:
    data, starts = records_of(*(RecordFields(topic=b"t%d" % (n % 2), body=b"x", queue=n) for n in range(4)))  # fmt: skip
    columns = RecordColumns.parse(data, starts, 50)
    assert columns.rows(np.array([3, 1])).queues.tolist() == [3, 1]
    assert columns.rows(columns.queues > 1).log_offsets.tolist() == [238, 332]
    assert columns.head(1).queues.tolist() == [0]
    assert columns.head(4) is columns
    names, rows = columns.topics
    assert [names[row] for row in rows.tolist()] == [b"t0", b"t1", b"t0", b"t1"]


# --- what makes a record valid


def test_coverage_has_what_its_ranges_say_and_the_kernel_agrees() -> None:
    coverage = Coverage.of([(30, 40), (5, 5), (10, 20), (20, 25)])
    assert coverage.ranges == ((10, 20), (20, 25), (30, 40))
    record = encode_record(RecordFields(topic=b"t", body=b"b"))
    for at in range(50):
        is_covered = coverage.has(at)
        assert is_covered == (10 <= at < 25 or 30 <= at < 40)
        whole = record[:28] + at.to_bytes(8, "big") + record[36:]
        found = _kernel.message(whole, at, None, 0, 0, coverage.packed)
        assert (found is None) == is_covered, "it ends in no CRC of its own"
    for start, stop, is_whole in ((12, 25, True), (12, 26, False), (12, 31, False), (7, 7, True)):
        assert coverage.has_all(start, stop) is is_whole


def sealed(body: bytes = b"body", log_offset: int = 1000) -> bytes:
    return encode_record(RecordFields(topic=b"t", body=body, log_offset=log_offset), crc_property=True)  # fmt: skip


def test_a_record_is_valid_at_its_own_place_only() -> None:
    assert is_valid(sealed(), 1000, is_covered=True)
    assert not is_valid(sealed(), 1001)
    assert sealed()[check(sealed(), 1000, is_covered=True)] == b"body"


@pytest.mark.parametrize("at", range(len(sealed())))
def test_a_flip_anywhere_is_found_where_records_end_in_a_crc_and_both_say_so(at: int) -> None:
    record = bytearray(sealed())
    record[at] ^= 1
    assert not is_valid(bytes(record), 1000, is_covered=True)
    with pytest.raises(MalformedRecordError):
        check(bytes(record), 1000, is_covered=True)


def test_without_coverage_a_missing_crc_proves_nothing() -> None:
    record = encode_record(RecordFields(topic=b"t", body=b"b"))
    assert is_valid(record, 0)
    assert not is_valid(record, 0, is_covered=True)
    assert ends_in_own_crc(sealed())
    assert not ends_in_own_crc(encode_record(RecordFields(topic=b"t", body=bytes(40))))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda r: r[:50], "at least 91 bytes"), (lambda r: b"\0" * 8 + r[8:], "magic"),
        (lambda r: r + b"\0", "a record of"), (lambda r: r[:84] + b"\x7f" * 4 + r[88:], "a body within"),
        (lambda r: r[:90] + b"?" + r[91:], "body CRC"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(spoil: Callable[[bytes], bytes], expected: str) -> None:
    with pytest.raises(MalformedRecordError, match=expected):
        check(spoil(sealed()), 1000, is_covered=False)


def is_message(record: bytes) -> bool:
    return _kernel.message(record, 0, None, 0, 0, b"") is not None


@pytest.mark.parametrize("topic", [b"t", b"t" * 200])
def test_the_kernel_takes_a_record_only_if_its_lengths_add_up(topic: bytes) -> None:
    """The body and its CRC are right in all of them."""
    record = encode_record(RecordFields(topic=topic, body=b"body", properties=b"a\x01b\x02"))
    assert is_message(record)
    width = 1 if topic == b"t" else 2
    text_at = 88 + len(b"body") + width + len(topic)
    for length in (3, 5, 0, 0x7FFF, 0x8000, 0x8004, 0xFFFF):
        wrong = record[:text_at] + struct.pack(">H", length) + record[text_at + 2 :]
        assert not is_message(wrong), length
    topic_at = 88 + len(b"body")
    for length in (0, len(topic) - 1, len(topic) + 1, 127, *range(len(topic) + 2, len(topic) + 7)):
        wrong = record[:topic_at] + length.to_bytes(width, "big") + record[topic_at + width :]
        assert is_message(wrong) == (length == len(topic)), length
    for size in (3, 5, 4 + len(topic), -1, 1 << 30):
        assert not is_message(record[:84] + struct.pack(">i", size) + record[88:]), size
    assert not is_message(record + b"\0")
    assert not is_message(record[:-1])


def test_the_kernel_takes_no_length_that_leads_backwards() -> None:
    """The topic's length is -2, and two bytes before its end the length of the rest seems to stand."""
    body = b"body\0"
    plain = encode_record(RecordFields(topic=b"", body=body, properties=b"x" * 251))
    wrong = bytearray(plain)
    wrong[88 + len(body)] = 0xFE
    assert len(wrong) - (88 + len(body) + 1) == 253
    wrong += b"x"
    wrong[:4] = struct.pack(">i", len(wrong))
    assert not is_message(bytes(wrong))


def test_text_of_one_letter_is_no_sector_that_was_never_written() -> None:
    """Neither is one that only begins with a zero."""
    for sector, is_torn in ((b"v" * 512, False), (b"\0" + b"v" * 511, False), (bytes(512), True)):
        record = encode_record(RecordFields(topic=b"t", body=b"", properties=b"a\x01" + b"v" * (1024 - 92 - 2) + sector + b"v"))  # fmt: skip
        assert record[1024:1536] == sector
        checks = _kernel.CRC | _kernel.TORN
        _, stop, _, _ = _kernel.scan(record, 0, checks, b"", 0, 512)
        assert (stop == 0) == is_torn
