"""What makes a record valid: every part of it, its place, and its CRCs."""

import struct
from collections.abc import Callable

import pytest

from penstock import _kernel
from penstock.format.record import MalformedRecordError, RecordFields, encode_record
from penstock.format.validity import Coverage, check, ends_in_own_crc, is_valid


def test_coverage_has_what_its_ranges_say_and_the_kernel_agrees() -> None:
    coverage = Coverage.of([(10, 20), (5, 5), (30, 40)])
    record = encode_record(RecordFields(topic=b"t", body=b"b"))
    for at in range(50):
        is_covered = coverage.has(at)
        assert is_covered == (10 <= at < 20 or 30 <= at < 40)
        whole = record[:28] + at.to_bytes(8, "big") + record[36:]
        found = _kernel.message(whole, at, None, 0, 0, coverage.packed)
        assert (found is None) == is_covered, "it ends in no CRC of its own"
    assert coverage.has_all(12, 20)
    assert not coverage.has_all(12, 31)
    assert Coverage.of([(0, 5), (5, 9)]).has_all(0, 9)


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


def test_ranges_are_covered_whole_in_part_or_not() -> None:
    coverage = Coverage.of([(30, 40), (5, 5), (10, 20), (20, 25)])
    assert coverage.ranges == ((10, 20), (20, 25), (30, 40))
    assert coverage.has_all(12, 25)
    assert not coverage.has_all(12, 31)
    assert coverage.has_all(7, 7)


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
