"""Where valid records go on after corrupt bytes: only with a witness, never within another record's body."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.log.test_scan import CAPACITY, log_of

from penstock.format.record import RecordFields, encode_record
from penstock.log.resync import Resync, find_next_valid, used_windows


def record(at: int, body: bytes, queue_offset: int = 0) -> bytes:
    return encode_record(RecordFields(topic=b"t", body=body, log_offset=at, queue_offset=queue_offset))  # fmt: skip


def chain(*bodies: bytes) -> tuple[bytes, list[int]]:
    """Return records one after the other, and where each begins."""
    data, places = b"", list[int]()
    for number, body in enumerate(bodies):
        places.append(len(data))
        data += record(len(data), body, number)
    return data, places


Spoil = Callable[[bytearray, int], None]


def zero_head(data: bytearray, at: int) -> None:
    data[at : at + 48] = bytes(48)


def flip_size(data: bytearray, at: int) -> None:
    data[at + 2] ^= 1


def flip_body(data: bytearray, at: int) -> None:
    data[at + 90] ^= 1


def flip_body_size(data: bytearray, at: int) -> None:
    data[at + 85] ^= 1


@pytest.mark.parametrize("spoil", [zero_head, flip_size, flip_body, flip_body_size])
def test_the_next_record_is_found_whatever_is_wrong_with_one(tmp_path: Path, spoil: Spoil) -> None:
    data, places = chain(b"a" * 50, b"b" * 60, b"c" * 70, b"d")
    spoilt = bytearray(data)
    spoil(spoilt, places[1])
    log = log_of(tmp_path, bytes(spoilt))
    assert find_next_valid(log, log.segments[0], places[1]) == places[2]


def test_a_record_within_the_body_of_another_is_content(tmp_path: Path) -> None:
    """A body may hold a whole record with the offset that it will have."""
    inner = record(100 + 88, b"inner")
    data = record(0, b"", 0).ljust(100, b"\0")[:92]
    outer = record(92, b"x" * 8 + inner + b"y" * 40, 1)
    assert inner in outer
    following = record(92 + len(outer), b"z", 2)
    spoilt = bytearray(record(0, b"", 0) + outer + following)
    del data
    at = len(record(0, b"", 0))
    assert at == 92
    zero_head(spoilt, at)
    log = log_of(tmp_path, bytes(spoilt))
    assert find_next_valid(log, log.segments[0], at) == at + len(outer)


def test_where_nothing_follows_nothing_is_found(tmp_path: Path) -> None:
    data, places = chain(b"a", b"b")
    spoilt = bytearray(data)
    flip_body(spoilt, places[1])
    log = log_of(tmp_path, bytes(spoilt))
    assert find_next_valid(log, log.segments[0], places[1]) is None


def test_records_that_no_witness_vouches_for_are_told_apart(tmp_path: Path) -> None:
    data, places = chain(b"a" * 50, b"b" * 60, b"c")
    resync = Resync(log := log_of(tmp_path, data), log.segments[0])
    assert [resync.is_record_at(at) for at in (*places, 1)] == [True, True, True, False]
    assert resync.unvouched(places[0], places[2]) == [places[1]]


def test_what_was_never_written_is_not_searched(tmp_path: Path) -> None:
    log = log_of(tmp_path, b"x" * 10)
    windows = list(used_windows(log, log.segments[0], 0))
    assert [(at, len(window)) for at, window in windows] == [(0, CAPACITY)]
    assert list(used_windows(log, log.segments[0], CAPACITY)) == []
