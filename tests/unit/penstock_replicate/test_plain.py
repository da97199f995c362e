import pytest

from penstock_replicate.wire.limits import WireViolation
from penstock_replicate.wire.plain import (
    PENSTOCK,
    Chunk,
    ChunkDecoder,
    ReportDecoder,
    encode_chunk_header,
    encode_greeting,
    encode_report,
)

# From sessions of a RocketMQ master with its slave.
HEARTBEAT = bytes.fromhex("000000000000353700000000")


def test_the_bytes_are_rocketmqs() -> None:
    assert encode_report(0x3537) == bytes.fromhex("0000000000003537")
    assert encode_chunk_header(0x3537, 0) == HEARTBEAT


def test_the_last_whole_report_counts() -> None:
    decoder = ReportDecoder()
    assert decoder.last(encode_report(1) + encode_report(2) + b"\0\0\0") == 2
    assert decoder.last(b"\0\0\0\0") is None
    assert decoder.last(b"\x09") == 9
    with pytest.raises(WireViolation):
        decoder.last(encode_report(-1))


@pytest.mark.parametrize("step", [1, 5, 12, 100])
def test_chunks_come_whole_from_pieces_of_any_size(step: int) -> None:
    stream = HEARTBEAT + encode_chunk_header(7, 3) + b"abc" + encode_chunk_header(10, 1) + b"d"
    decoder = ChunkDecoder()
    found = [one for at in range(0, len(stream), step) for one in decoder.chunks(stream[at : at + step])]  # fmt: skip
    assert found == [Chunk(0x3537, b""), Chunk(7, b"abc"), Chunk(10, b"d")]


def test_a_greeting_ends_the_chunks() -> None:
    decoder = ChunkDecoder()
    assert not list(decoder.chunks(encode_greeting(b"hello") + b"more"))
    assert (decoder.hello, decoder.rest) == (b"hello", b"more")
    assert PENSTOCK.to_bytes(8) == b"PENSTOCK"


@pytest.mark.parametrize("header", [(0, -1), (0, 1 << 30), (-1, 0), (PENSTOCK, 1 << 30)])
def test_a_chunk_out_of_limits_is_refused(header: tuple[int, int]) -> None:
    with pytest.raises(WireViolation):
        list(ChunkDecoder().chunks(encode_chunk_header(*header)))
