"""What makes a record valid: every part of it, its place, and its CRCs."""

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
