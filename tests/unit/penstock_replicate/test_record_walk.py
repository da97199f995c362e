"""Records are followed by their headers, however the bytes are cut."""

import pytest

from penstock.format.record import RecordFields, encode_record
from penstock_replicate.ship.record_walk import RecordHead, RecordWalk, header_at

BLANK = (100).to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big") + bytes(92)


def record(time_ms: int, *, ipv6: bool = False, size: int = 10) -> bytes:
    host = bytes(16) + (1).to_bytes(4, "big") if ipv6 else b"\x7f\0\0\1\0\0\0\1"
    return encode_record(RecordFields(topic=b"t", body=b"x" * size, store_time_ms=time_ms, born_host=host, store_host=host))  # fmt: skip


RECORDS = [record(1000), record(2000, ipv6=True), record(3000, size=500), record(4000)]
DATA = b"".join(RECORDS) + BLANK
ENDS = [sum(map(len, RECORDS[: n + 1])) for n in range(4)]


def walked(step: int, data: bytes = DATA, **limit: int | None) -> RecordWalk:
    walk = RecordWalk(5000, **{"last_ms": None, "last_offset": None, **limit})
    for at in range(0, len(data), step):
        walk.feed(data[at : at + step])
    return walk


@pytest.mark.parametrize("step", [1, 7, 90, 100_000])
def test_the_last_record_before_a_point_is_found(step: int) -> None:
    for number in range(4):
        walk = walked(step, last_ms=(number + 1) * 1000 + 500)
        wanted = 5000 + (ENDS[number] if number < 3 else len(DATA))
        assert (walk.end, walk.time_ms, walk.is_over) == (wanted, (number + 1) * 1000, number < 3)
        for more in (0, 50):
            walk = walked(step, last_offset=5000 + ENDS[number] + more)
            assert walk.end == 5000 + ENDS[number]
    walk = walked(step, last_ms=999)
    assert (walk.end, walk.time_ms, walk.is_over, walk.reason) == (5000, 0, True, None)


def test_what_is_no_record_ends_the_walk() -> None:
    walk = walked(10, RECORDS[0] + bytes(200), last_ms=1 << 60)
    assert walk.reason == f"no record begins at log offset {5000 + ENDS[0]}"
    assert header_at(BLANK, 0) == RecordHead(100, None)
    assert header_at(b"", 0) is None
    assert header_at(b"\0\0\0\1" + BLANK[4:], 0) is None
    assert header_at(RECORDS[0][:50], 0) is None
