"""Bytes of another log, in pieces of any size: the same records come out, and nothing but records."""

import struct
from random import Random
from typing import Any

import pytest
from tests.lanes import explored
from tests.replicas.logs import SEGMENT, MasterLog

from penstock.durability.written_ranges import NO_RANGES, Ranges, WrittenRange
from penstock.errors import CorruptionError
from penstock.format.record import BLANK, MAGIC_BLANK
from penstock.format.validity import Coverage
from penstock.log.copied_bytes import CopiedBytes

RECORD_MAX = 1 << 20


def stream(at: int = 0, *, covered: bool = True) -> CopiedBytes:
    made = CopiedBytes(SEGMENT, RECORD_MAX, at)
    if covered:
        made.coverage = Coverage.of([(0, 1 << 40)])
    return made


def taken(made: CopiedBytes, log_offset: int, data: bytes) -> bytes:
    """Return what the pieces have on disk."""
    before, out = made.end_offset, bytearray()
    for at, piece, records in made.take(log_offset, data):
        assert at == before + len(out)
        assert (records is None) == (not piece or at % SEGMENT + len(piece) == SEGMENT)
        size = SEGMENT - at % SEGMENT
        out += piece or BLANK.pack(size, MAGIC_BLANK) + bytes(size - BLANK.size)
    assert made.end_offset == before + len(out)
    return bytes(out)


def fed(made: CopiedBytes, start: int, data: bytes, size: int) -> bytes:
    out = bytearray()
    for at in range(0, len(data), size):
        assert made.next_offset == start + at
        out += taken(made, start + at, data[at : at + size])
    return bytes(out)


def filler_of(log: MasterLog) -> int:
    """Return where the filler of the first segment begins."""
    return log.raw.index(BLANK.pack(0, MAGIC_BLANK)[4:]) - 4


@pytest.mark.parametrize("place", [None, 0, 1, 40, -1])
def test_pieces_of_any_size_give_the_same_bytes(log: MasterLog, place: int | None) -> None:
    """Also with filler that is not zero.

    A broker of 4.x leaves what was there, and a store that takes its log over is copied with it.
    """
    raw, begin = bytearray(log.raw), SEGMENT * 2
    if place is not None:
        raw[SEGMENT - 1 if place < 0 else filler_of(log) + BLANK.size + place] = 7
    for size in (1, 3, 8, 9, 35, 36, 91, 1000, 5000, SEGMENT, 1 << 20):
        assert fed(stream(), 0, bytes(raw), size) == raw
        assert fed(stream(begin), begin, bytes(raw[begin:]), size) == raw[begin:]


@pytest.mark.parametrize("size", [7, 500, 1 << 20])
def test_a_changed_byte_is_refused_wherever_it_is(log: MasterLog, size: int) -> None:
    """Half of the bytes are before the filler at the end of a segment, or in its head."""
    chance, raw = Random(size), log.raw[: SEGMENT + 2000]
    unnoticed, filler = 0, filler_of(log) + BLANK.size
    count = explored(450)
    for number in range(count):
        wrong = bytearray(raw)
        place = (
            chance.randrange(SEGMENT, len(raw))
            if number % 2
            else filler - 1 - chance.randrange(2000)
        )
        wrong[place] ^= 1 << chance.randrange(8)
        made, given, refused = stream(), b"", None
        try:
            for at in range(0, len(raw), size):
                given += taken(made, at, bytes(wrong[at : at + size]))
        except CorruptionError as error:
            refused = error
        assert given == raw[: len(given)]
        if refused is None:
            # A longer size: the record waits for more.
            unnoticed += 1
            assert made.end_offset <= place
        else:
            assert made.end_offset == made.next_offset == len(given) <= refused.position <= place
    assert unnoticed < count // 10


def test_filler_that_is_not_zero_is_as_long_as_a_record_at_most(log: MasterLog) -> None:
    blank = filler_of(log)
    made = CopiedBytes(SEGMENT, SEGMENT - blank - 10, blank)
    with pytest.raises(CorruptionError, match="bytes of filler"):
        taken(made, blank, log.raw[blank : SEGMENT - 1])
        taken(made, SEGMENT - 1, b"x")


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (struct.pack(">iI", 200, 0xDEADBEEF), "magic deadbeef"),
        (struct.pack(">iI", 50, 0xDAA320A7), "size 50"),
        (struct.pack(">iI", -5, 0xDAA320A7), "size -5"),
        (struct.pack(">iI", SEGMENT - 7, 0xDAA320A7), "ends within its segment"),
        (struct.pack(">iI", 9000, 0xDAA320A7), "log.body_bytes_max"),
        (struct.pack(">iI", 200, 0xDAA320A7) + bytes(28), "a record of this log offset"),
        (BLANK.pack(SEGMENT - 1, MAGIC_BLANK), "bytes of filler"),
    ],
)
def test_a_wrong_head_is_refused_before_its_record_is_there(head: bytes, text: str) -> None:
    start = 3 * SEGMENT
    for size in (1, 5, len(head)):
        made = CopiedBytes(SEGMENT, 8000, start)
        with pytest.raises(CorruptionError, match=text) as raised:
            for at in range(0, len(head), size):
                made.take(start + at, head[at : at + size])
        assert raised.value.position == start == made.next_offset


def written(*ranges: tuple[int, int, str]) -> Ranges:
    return Ranges(written=tuple(WrittenRange(start=a, stop=b, checksum=c) for a, b, c in ranges))


def test_ranges_of_a_copy_are_its_own_up_to_its_end_and_then_its_masters() -> None:
    mine = written((0, 100, "crc32"), (100, 1 << 62, "a"))
    told = written((50, 300, "a"), (300, 500, "b"), (500, 1 << 62, "a")).told()
    told["perhaps"], told["gaps"] = [[10, 400], [900, None]], [[0, 64], [256, 512]]
    found = mine.followed(told, 250)
    assert [(r.start, r.stop, r.checksum) for r in found.written] == [
        (0, 100, "crc32"), (100, 300, "a"), (300, 500, "b"), (500, 1 << 62, "a"),
    ]  # fmt: skip
    assert (found.perhaps, found.gaps) == (((250, 400), (900, 1 << 62)), ((256, 512),))
    # Many connections do not make the file longer.
    assert found.followed(told, 450) == found
    alone = found.followed(NO_RANGES.told(), 200).written
    assert [(r.start, r.stop) for r in alone] == [(0, 100), (100, 200)]


@pytest.mark.parametrize(
    "told",
    [
        {}, {"ranges": 7, "perhaps": [], "gaps": []}, {"ranges": [{}], "perhaps": [], "gaps": []},
        {"ranges": [], "perhaps": [[0]], "gaps": []}, {"ranges": [], "perhaps": [[0, 1 << 70]], "gaps": []},
        {"ranges": [{"start": 9, "stop": 1, "checksum": "a"}], "perhaps": [], "gaps": []},
        {"ranges": [{"start": -1, "stop": 1, "checksum": "a"}], "perhaps": [], "gaps": []},
    ],
)  # fmt: skip
def test_ranges_that_cannot_be_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be understood"):
        NO_RANGES.followed(told, 0)
