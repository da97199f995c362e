"""Frames between a master and its follower: what is read is what was sent, or the connection is closed."""

import json
from random import Random
from struct import Struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.lanes import SEED, rounds
from tests.replicas.fakes import data_frame

from penstock.contracts import Epoch
from penstock_replicate import wire
from penstock_replicate.wire import (
    Ack,
    Control,
    Data,
    Frame,
    FrameReader,
    Heartbeat,
    WireViolation,
)

HEADER = Struct(">IBII")
ALL: wire.Limits = {**wire.FROM_MASTER, **wire.FROM_FOLLOWER}
EPOCHS = [Epoch(1, 0, 0, "ab" * 8), Epoch(1, 1, 900, "ab" * 8)]
HELLO = {
    "version": 1, "history": "0" * 32, "store": "ab" * 8, "segment_bytes": 65536, "min": 0, "end": 7, "epochs": EPOCHS,
    "nonce": None, "proof": "cd" * 32,
}  # fmt: skip
FOLLOW = Control("follow", {"log_offset": 77})


def framed(kind: bytes, payload: bytes) -> bytes:
    head = len(payload).to_bytes(4, "big") + kind
    return header(kind, len(payload), crc32c(head + payload)) + payload


def header(kind: bytes, length: int, crc: int = 0) -> bytes:
    return HEADER.pack(length, kind[0], crc32c(length.to_bytes(4, "big") + kind), crc)


def read(data: bytes, limits: wire.Limits = ALL) -> list[Frame]:
    return [*FrameReader(limits).take(data)]


def drawn(chance: Random) -> tuple[list[Frame], bytes]:
    """Return some frames, and their bytes."""
    frames: list[Frame] = []
    stream = b""
    for _ in range(chance.randrange(1, 6)):
        first, second = sorted(chance.sample(range(1 << 40), 2))
        match chance.randrange(5):
            case 0:
                body = chance.randbytes(chance.randrange(1, 300))
                frames.append(Data(first, body))
                stream += data_frame(first, body)
            case 1:
                frames.append(Ack(second, first))
                stream += wire.ack_frame(second, first)
            case 2:
                frames.append(Heartbeat(second))
                stream += wire.heartbeat_frame(second)
            case 3:
                frames.append(FOLLOW)
                stream += wire.control("follow", log_offset=77)
            case _:
                frames.append(Control("hello", {**HELLO, "epochs": tuple(EPOCHS)}))
                stream += wire.control("hello", **HELLO)
    return frames, stream


def garbled(stream: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(stream))
    match chance.randrange(4):
        case 0:
            return stream[:at] + bytes([stream[at] ^ 1 << chance.randrange(8)]) + stream[at + 1 :]
        case 1:
            return stream[:at] + stream[at + chance.randrange(1, 9) :]
        case 2:
            return stream[:at] + chance.randbytes(chance.randrange(1, 9)) + stream[at:]
        case _:
            return stream[:at] + stream[chance.randrange(len(stream)) :]


def took(reader: FrameReader, stream: bytes, chance: Random) -> tuple[list[Frame], bool]:
    """Return the frames of a stream that comes in pieces, and whether it ended in a violation."""
    found: list[Frame] = []
    while stream:
        size = chance.randrange(1, 400)
        try:
            for frame in reader.take(stream[:size]):
                found.append(frame)  # noqa: PERF402 - those before a violation count
        except WireViolation:
            return found, True
        assert reader.held_bytes <= HEADER.size + max(reader.limits.values())
        stream = stream[size:]
    return found, False


@given(st.randoms(use_true_random=False))
def test_pieces_of_any_size_give_the_frames_that_were_sent(chance: Random) -> None:
    frames, stream = drawn(chance)
    reader = FrameReader(ALL)
    assert took(reader, stream, chance) == (frames, False)
    assert reader.held_bytes == 0


@given(st.randoms(use_true_random=False))
def test_what_is_given_back_comes_again(chance: Random) -> None:
    frames, stream = drawn(chance)
    reader, found, kept = FrameReader(ALL), list[Frame](), b""
    while stream:
        size = chance.randrange(1, 400)
        piece = kept + stream[:size]
        found += reader.take(memoryview(piece))
        kept, stream = piece[len(piece) - reader.give_back() :], stream[size:]
        assert reader.held_bytes == 0
    assert (found, kept) == (frames, b"")


@pytest.mark.parametrize("size", [*range(1, 40), *range(980, 1100), 4096, 5001, 1 << 20])
def test_a_frame_has_the_crc_of_its_bytes(size: int) -> None:
    data = Random(size).randbytes(size)
    assert data_frame(7, data) == framed(b"D", (7).to_bytes(8, "big") + data)
    assert read(data_frame(7, memoryview(data))) == [Data(7, data)]


def test_a_garbled_stream_ends_in_a_violation_or_a_prefix_of_what_was_sent() -> None:
    violations = 0
    for number in range(rounds(gate=3_000, night=1_000_000)):
        chance = Random(f"{SEED} {number}")
        frames, stream = drawn(chance)
        found, is_violation = took(FrameReader(ALL), garbled(stream, chance), chance)
        # Bytes that are left out or repeated may be whole frames: those are not garbled.
        rest = iter(frames * 2)
        assert all(frame in rest for frame in found), f"PENSTOCK_SEED={SEED}, {number}"
        violations += is_violation
    assert violations


@given(st.binary(max_size=200))
def test_noise_is_never_a_frame(noise: bytes) -> None:
    found, _ = took(FrameReader(ALL), noise, Random(0))
    assert not found


@pytest.mark.parametrize("kind", [b"J", b"D", b"A", b"H", b"x"])
def test_a_frame_that_may_not_come_is_refused_before_its_bytes(kind: bytes) -> None:
    for limits in ({}, wire.ONLY_CONTROL, wire.FROM_MASTER):
        reader = FrameReader(limits)
        most = limits.get(kind, -1)
        with pytest.raises(WireViolation, match="bytes"):
            list(reader.take(header(kind, most + 1)))
        if most > 0:
            assert list(FrameReader(limits).take(header(kind, most))) == []


@pytest.mark.parametrize("bit", range(40))
def test_a_length_that_was_changed_is_not_waited_for(bit: int) -> None:
    """Heartbeats filled the frame that would never end, for hours, and kept the connection."""
    frame = bytearray(data_frame(0, bytes(1000)))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireViolation):
        list(FrameReader(ALL).take(bytes(frame[: HEADER.size])))


def test_limits_that_change_between_two_frames_are_those_of_the_second() -> None:
    reader = FrameReader(wire.ONLY_CONTROL)
    frames = reader.take(wire.control("follow", log_offset=77) + wire.ack_frame(9, 8))
    assert next(frames) == FOLLOW
    reader.limits = wire.FROM_FOLLOWER
    assert [*frames] == [Ack(9, 8)]


WRONG = {
    "no JSON": b"{",
    "too deep": b"[" * 60_000,
    "no object": b"[1]",
    "no kind": b"{}",
    "unknown kind": b'{"is":"promote"}',
    "kind of a wrong type": b'{"is":["ask"]}',
    "missing": b'{"is":"ask","start":0}',
    "negative": b'{"is":"follow","log_offset":-1}',
    "too large": b'{"is":"follow","log_offset":%d}' % (1 << 62),
    "a flag": b'{"is":"follow","log_offset":true}',
    "a float": b'{"is":"follow","log_offset":1.0}',
    "digits": json.dumps({"is": "hello", **HELLO, "store": "AB" * 8}).encode(),
    "another version": json.dumps({"is": "hello", **HELLO, "version": 2}).encode(),
    "segments": json.dumps({"is": "hello", **HELLO, "segment_bytes": 0}).encode(),
    "epochs": json.dumps({"is": "hello", **HELLO, "epochs": [[1, 0, 0]]}).encode(),
    "epochs that fall": json.dumps({"is": "hello", **HELLO, "epochs": EPOCHS[::-1]}).encode(),
    "an epoch twice": json.dumps({"is": "hello", **HELLO, "epochs": EPOCHS[:1] * 2}).encode(),
    "long text": json.dumps({"is": "bye", "code": "closing", "text": "x" * 1001}).encode(),
}


@pytest.mark.parametrize("payload", WRONG.values(), ids=WRONG)
def test_values_of_control_frames_are_checked(payload: bytes) -> None:
    with pytest.raises(WireViolation):
        read(framed(b"J", payload))


def test_unknown_keys_are_ignored() -> None:
    payload = b'{"is":"follow","log_offset":77,"side":true}'
    assert read(framed(b"J", payload)) == [FOLLOW]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (b"D", bytes(8)), (b"D", b"\xff" * 9), (b"A", bytes(15)), (b"A", b"\xff" * 16), (b"H", b""),
        (b"H", b"\x80" + bytes(7)),
    ],
)  # fmt: skip
def test_offsets_and_lengths_are_checked(kind: bytes, payload: bytes) -> None:
    with pytest.raises(WireViolation):
        read(framed(kind, payload))


def test_the_newest_epochs_are_sent() -> None:
    many = [Epoch(1, opening, wire.OFFSET_MAX, "ab" * 8) for opening in range(600)]
    (hello,) = read(wire.control("hello", **{**HELLO, "epochs": wire.packed(many)}))
    assert isinstance(hello, Control)
    assert hello.fields["epochs"] == tuple(many[-wire.EPOCHS_MAX :])
