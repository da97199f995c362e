import random

import pytest

from penstock_replicate.wire.decoding import FrameDecoder, SideFiles
from penstock_replicate.wire.frames import Ack, Data, FrameType, Heartbeat, Side, encode
from penstock_replicate.wire.limits import SIDE_BYTES_MAX, WireViolation

ALL = frozenset(FrameType)


@pytest.mark.parametrize("step", [1, 4, 5, 7, 1000])
def test_frames_come_whole_from_pieces_of_any_size(step: int) -> None:
    sent = [Ack(n, n) for n in range(20)] + [Data(0, random.Random(1).randbytes(300))]
    stream = b"".join(map(encode, sent))
    decoder = FrameDecoder(ALL)
    found = [
        frame
        for at in range(0, len(stream), step)
        for frame in decoder.frames(stream[at : at + step])
    ]
    assert found == sent


def test_what_is_allowed_may_change_between_two_frames_of_one_piece() -> None:
    decoder = FrameDecoder(frozenset({FrameType.ACK}))
    frames = decoder.frames(encode(Ack(1, 1)) + encode(Heartbeat(1, 1)))
    assert next(frames) == Ack(1, 1)
    decoder.allowed = frozenset({FrameType.HEARTBEAT})
    assert next(frames) == Heartbeat(1, 1)


def test_a_wrong_length_is_refused_before_more_is_kept() -> None:
    decoder = FrameDecoder(ALL)
    with pytest.raises(WireViolation):
        list(decoder.frames(b"\x7f\xff\xff\xff\x05" + bytes(100)))


def test_data_stays_as_it_is_when_more_comes() -> None:
    decoder = FrameDecoder(ALL)
    (first,) = decoder.frames(encode(Data(0, b"first")))
    list(decoder.frames(encode(Data(5, b"other"))))
    assert isinstance(first, Data)
    assert bytes(first.data) == b"first"


def test_parts_of_a_file_are_joined() -> None:
    files = SideFiles()
    assert files.add(Side("f", b"ab", True)) is None
    assert files.add(Side("f", b"c")) == ("f", b"abc")
    assert files.add(Side("g", b"")) == ("g", b"")


def test_parts_that_do_not_fit_are_refused() -> None:
    files = SideFiles()
    files.add(Side("f", b"a", True))
    with pytest.raises(WireViolation):
        files.add(Side("g", b"b"))
    with pytest.raises(WireViolation):
        SideFiles().add(Side("f", b"", True))
    large, part = SideFiles(), Side("f", bytes(1 << 22), True)
    with pytest.raises(WireViolation):
        for _ in range(SIDE_BYTES_MAX // len(part.data) + 1):
            large.add(part)
