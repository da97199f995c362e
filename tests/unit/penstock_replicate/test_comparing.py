"""Where two logs part: by their epochs, and by the bytes."""

import asyncio
import random
from hashlib import sha256
from struct import Struct

import attrs
import pytest

from penstock.format.record import MAGIC_BLANK, MAGIC_V1
from penstock_replicate.following.comparing import (
    WINDOW_BYTES,
    common_part,
    count_records,
    is_equal,
    last_window,
    parting_of,
    record_start,
)

SIZES = Struct(">ii")


@attrs.frozen
class Begin:
    """An epoch."""

    epoch: int
    start_offset: int


@attrs.frozen(kw_only=True)
class Bytes:
    """A log in memory."""

    data: bytes
    segment_bytes: int = 1 << 30
    min_offset: int = 0

    @property
    def end_offset(self) -> int:
        return self.min_offset + len(self.data)

    def read(self, log_offset: int, size: int) -> bytes:
        start = log_offset - self.min_offset
        size = min(size, self.segment_bytes - log_offset % self.segment_bytes)
        return self.data[start : start + size]

    def digest(self, start: int, stop: int) -> bytes:
        assert stop - start <= WINDOW_BYTES
        return sha256(self.data[start - self.min_offset : stop - self.min_offset]).digest()


ONE, TWO, OTHER_TWO, THREE = Begin(1, 0), Begin(2, 1000), Begin(2, 1200), Begin(3, 3000)


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "expected"),
    [
        ([ONE], 500, [ONE], 900, (500, None, None)),
        ([ONE], 900, [ONE], 500, (500, None, None)),
        # The other one was promoted: what this one wrote later is not there.
        ([ONE], 5000, [ONE, TWO], 1500, (1000, None, 2)),
        ([ONE], 800, [ONE, TWO], 1500, (800, None, 2)),
        ([ONE], 800, [ONE, TWO, THREE], 4000, (800, None, 2)),
        # This one was promoted.
        ([ONE, TWO], 1500, [ONE], 5000, (1000, 2, None)),
        ([ONE, TWO], 1500, [ONE, OTHER_TWO], 1500, (1000, 2, 2)),
        ([ONE, TWO], 2000, [ONE, TWO, THREE], 9000, (2000, None, 3)),
        ([Begin(1, 8)], 2000, [ONE], 9000, (0, 1, 1)),
        ([], 2000, [ONE], 9000, (0, None, 1)),
    ],
)
def test_epochs_say_how_far_two_logs_can_be_equal(
    own: list[Begin], own_end: int, theirs: list[Begin], their_end: int, expected: tuple[int, int | None, int | None],
) -> None:  # fmt: skip
    found = common_part(own, own_end, theirs, their_end)
    assert (found.end, found.own_epoch, found.their_epoch) == expected


def test_the_last_window_does_not_begin_before_the_log() -> None:
    assert last_window(5, 10) == (5, 10)
    assert last_window(5, 5 + 3 * WINDOW_BYTES) == (5 + 2 * WINDOW_BYTES, 5 + 3 * WINDOW_BYTES)


def parting(own: Bytes, other: Bytes) -> tuple[int, int]:
    asked = 0

    async def ask(start: int, stop: int) -> bytes:
        nonlocal asked
        asked += 1
        return other.digest(start, stop)

    high = min(own.end_offset, other.end_offset)
    found = asyncio.run(parting_of(own, ask, max(own.min_offset, other.min_offset), high))
    return found, asked


@pytest.mark.parametrize("size", [1, 100, WINDOW_BYTES, WINDOW_BYTES + 1, 5 * WINDOW_BYTES - 3])
def test_the_first_byte_that_differs_is_found_in_few_questions(size: int) -> None:
    chance = random.Random(size)
    data = chance.randbytes(size)
    places = {0, size - 1, size // 2, *(chance.randrange(size) for _ in range(4))}
    for place in places:
        # From there on all differs, as in logs that part.
        changed = data[:place] + bytes(255 - b for b in data[place:])
        found, asked = parting(Bytes(data=data, min_offset=70), Bytes(data=changed, min_offset=70))
        assert found == 70 + place
        assert asked <= 28


def record(at: int, size: int, time_ms: int) -> bytes:
    head = SIZES.pack(size, MAGIC_V1) + bytes(20) + at.to_bytes(8, "big") + bytes(20)
    return (head + time_ms.to_bytes(8, "big")).ljust(size, b"b")


@pytest.mark.parametrize("tail", ["filler", "body"])
def test_logs_that_end_alike_are_not_taken_for_equal(tail: str) -> None:
    """A master lost its last records in a crash, and wrote others of the same sizes in the same epoch."""

    def log(time_ms: int) -> Bytes:
        data = b"".join(
            record(at, 1000, 5 if at < 7000 else time_ms) for at in range(0, 10_000, 1000)
        )
        if tail == "filler":
            # Of a segment, before a large record.
            size = 5 * WINDOW_BYTES
            return Bytes(data=data + SIZES.pack(size, MAGIC_BLANK) + bytes(size - 8))
        return Bytes(data=data + record(10_000, 4 * WINDOW_BYTES, time_ms))

    own, other = log(6), log(7)

    async def ask(start: int, stop: int) -> bytes:
        return other.digest(start, stop)

    assert own.digest(*last_window(0, own.end_offset)) == other.digest(
        *last_window(0, own.end_offset)
    )
    assert not asyncio.run(is_equal(own, ask, 0, own.end_offset))
    assert asyncio.run(is_equal(other, ask, 0, own.end_offset))
    found, _ = parting(own, other)
    assert record_start(own, found) == 7000


def records(sizes: list[int]) -> bytes:
    return b"".join(SIZES.pack(size, 7) + bytes(size - 8) for size in sizes)


def test_the_record_of_a_byte_is_found_and_records_are_counted() -> None:
    # Two segments of 100 bytes: the second begins where the first one's blank record ends.
    log = Bytes(data=records([30, 40, 30, 50, 9]), segment_bytes=100)
    expected = {0: 0, 29: 0, 30: 30, 69: 30, 70: 70, 99: 70, 100: 100, 149: 100, 150: 150, 158: 150}
    assert {place: record_start(log, place) for place in expected} == expected
    assert count_records(log, 0, log.end_offset, 100) == 5
    assert count_records(log, 70, log.end_offset, 100) == 3
    assert count_records(log, 0, log.end_offset, 2) == 2


def test_a_walk_ends_where_there_is_no_record() -> None:
    log = Bytes(data=records([30]) + bytes(40), segment_bytes=100)
    assert count_records(log, 0, log.end_offset, 100) == 1
    assert record_start(log, 60) == 0
