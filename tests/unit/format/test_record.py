"""Every vector of the format: one table drives encode and decode."""

import random

import attrs
import pytest

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
from penstock.format.validity import check, ends_in_own_crc

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
    assert len(v2) == 221
    assert v2[:12].hex() == "000000dddaa320ab71beeff9"
    assert v2[84:93].hex() == "000000016200807474"


def test_the_crc_property_vector() -> None:
    data = encode_record(COMMON, crc_property=True)
    assert len(data) == 194
    assert data[:4].hex() == "000000c2"
    assert data[-20:].hex() == "5f5f435243333223013832363136323739393002"
    assert ends_in_own_crc(data)
    assert not ends_in_own_crc(encode_record(COMMON))
    assert crc_property(907060870).hex() == "5f5f4352433332230130373830363037303930" + "02"
    without = attrs.evolve(COMMON, properties=b"TAGS\x01TagA")
    assert b"TagA\x02__CRC32#" in encode_record(without, crc_property=True)
    check(encode_record(without, crc_property=True), 0, is_covered=True)


def test_the_blank_record_vector() -> None:
    assert BLANK.pack(68, MAGIC_BLANK).hex() == "00000044cbd43194"


@pytest.mark.parametrize(
    ("text", "crc"),
    [
        (b"a", 1756872259),
        (b"hello", 907060870),
        (b"Hello RocketMQ", 1774740973),
        (b"123456789", 1274296614),
        (b"", 0),
    ],
)
def test_body_crcs(text: bytes, crc: int) -> None:
    assert body_crc(text) == crc


def test_every_cut_of_a_record_is_malformed_not_a_crash() -> None:
    from tests.unit.format.test_record import EVERYTHING  # noqa: PLC0415 - its richest record

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
