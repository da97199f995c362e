"""Bytes of another log, in pieces of any size: the same records come out, and nothing but records."""

import struct
from pathlib import Path
from random import Random

import pytest
from tests.following import SEGMENT, MasterLog, make_log

from penstock.errors import CorruptionError, OffsetError
from penstock.format.record import BLANK, MAGIC_BLANK
from penstock.log.copied_bytes import CopiedBytes

RECORD_MAX = 1 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return make_log(tmp_path_factory.mktemp("master") / "store")


def stream(log: MasterLog, at: int = 0) -> CopiedBytes:
    made = CopiedBytes(SEGMENT, RECORD_MAX, at)
    made.coverage = log.ranges.coverage
    return made


def copied(made: CopiedBytes, log_offset: int, data: bytes) -> list[tuple[int, bytes]]:
    found = []
    for at, piece, records in made.take(log_offset, data):
        if records is None and not len(piece):
            size = SEGMENT - at % SEGMENT
            piece = BLANK.pack(size, MAGIC_BLANK) + bytes(size - BLANK.size)  # noqa: PLW2901 - as it is on disk
        found.append((at, bytes(piece)))
    return found


@pytest.mark.parametrize("size", [1, 3, 8, 35, 36, 91, 1000, 5000, SEGMENT, 1 << 20])
def test_pieces_of_any_size_give_the_same_bytes(log: MasterLog, size: int) -> None:
    made, out = stream(log), bytearray()
    for at in range(0, log.end, size):
        assert made.next_offset == at
        for begin, piece in copied(made, at, log.raw[at : at + size]):
            assert begin == len(out)
            out += piece
        assert made.end_offset == len(out)
    assert out == log.raw


@pytest.mark.parametrize("size", [7, 500, 1 << 20])
def test_any_changed_byte_is_refused_and_nothing_of_the_call_is_given(
    log: MasterLog, size: int
) -> None:
    chance = Random(size)
    raw = log.raw[: log.begins[20]]
    unnoticed = 0
    for _ in range(150):
        wrong = bytearray(raw)
        wrong[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        made, given = stream(log), b""
        refused = None
        for at in range(0, len(raw), size):
            try:
                given += b"".join(
                    piece for _, piece in copied(made, at, bytes(wrong[at : at + size]))
                )
            except CorruptionError as error:
                refused = error
                break
        assert given == raw[: len(given)]
        assert made.end_offset == len(given)
        assert refused is None or refused.position >= len(given) == made.next_offset
        unnoticed += refused is None
    # All records end in a CRC of their own, so only a longer size goes unnoticed: it waits for more.
    assert unnoticed < 30


def test_filler_that_is_not_zero_is_kept(log: MasterLog) -> None:
    end = log.raw.index(BLANK.pack(0, MAGIC_BLANK)[4:]) - 4
    raw = bytearray(log.raw[:SEGMENT])
    raw[-3] = 7
    for size in (1, 9, 100, SEGMENT):
        made, out = stream(log), b""
        for at in range(0, SEGMENT, size):
            out += b"".join(piece for _, piece in copied(made, at, bytes(raw[at : at + size])))
        assert out == raw, size
    made = CopiedBytes(SEGMENT, SEGMENT - end - 10, end)
    with pytest.raises(CorruptionError, match="filler of zeros"):
        made.take(end, bytes(raw[end:]))


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (struct.pack(">iI", 200, 0xDEADBEEF), "magic deadbeef"),
        (struct.pack(">iI", 50, 0xDAA320A7), "size 50"),
        (struct.pack(">iI", -5, 0xDAA320A7), "size -5"),
        (struct.pack(">iI", SEGMENT - 7, 0xDAA320A7), "ends within its segment"),
        (struct.pack(">iI", 9000, 0xDAA320A7), "log.body_bytes_max"),
        (struct.pack(">iI", 200, 0xDAA320A7) + bytes(28), "a record of this log offset"),
        (BLANK.pack(SEGMENT - 1, MAGIC_BLANK), "a blank record"),
    ],
)
def test_a_wrong_head_is_refused_before_its_record_is_there(head: bytes, text: str) -> None:
    start = 3 * SEGMENT
    for size in (1, 5, len(head)):
        made = CopiedBytes(SEGMENT, 8000, start)
        with pytest.raises(CorruptionError, match=text) as raised:
            for at in range(0, len(head), size):
                made.take(start + at, head[at : at + size])
        assert raised.value.position == start
        assert made.next_offset == start


def test_bytes_follow_or_begin_again(log: MasterLog) -> None:
    made = stream(log)
    made.take(0, log.raw[:1000])
    end, following = made.end_offset, made.next_offset
    assert end < following == 1000
    for wrong in (end + 1, following + 1, end - 1):
        with pytest.raises(OffsetError):
            made.take(wrong, b"x")
    assert made.next_offset == following
    # The bytes that wait are sent again, as after a new connection.
    assert made.take(end, log.raw[end:2000])
    made.forget(0)
    assert (made.end_offset, made.next_offset) == (0, 0)


def test_without_coverage_a_body_has_its_crc(log: MasterLog, tmp_path: Path) -> None:
    plain = make_log(tmp_path / "plain", 5, **{"log.checksum": "crc32"})
    made = CopiedBytes(SEGMENT, RECORD_MAX, 0)
    assert len(made.take(0, plain.raw)) == 1
    made = stream(log)
    with pytest.raises(CorruptionError, match="CRC"):
        made.take(0, plain.raw)
    at = plain.raw.index(b"2:xxx") + 3
    wrong = plain.raw[:at] + b"y" + plain.raw[at + 1 :]
    made = CopiedBytes(SEGMENT, RECORD_MAX, 0)
    with pytest.raises(CorruptionError) as raised:
        made.take(0, wrong)
    assert raised.value.position == plain.begins[2]
