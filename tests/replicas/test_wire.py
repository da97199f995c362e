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
    frames, stream = list[Frame](), b""
    for _ in range(chance.randrange(1, 6)):
        first, second = sorted(chance.sample(range(1 << 40), 2))
        body = chance.randbytes(chance.randrange(1, 300))
        frame, raw = chance.choice((
            (Data(first, body), data_frame(first, body)),
            (Ack(second, first), wire.ack_frame(second, first)),
            (Heartbeat(second), wire.heartbeat_frame(second)),
            (FOLLOW, wire.control("follow", log_offset=77)),
            (Control("hello", {**HELLO, "epochs": tuple(EPOCHS)}), wire.control("hello", **HELLO)),
        ))  # fmt: skip
        frames.append(frame)
        stream += raw
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
    """Also if a reader gives back what it holds, and gets it again with the next piece."""
    frames, stream = drawn(chance)
    reader = FrameReader(ALL)
    assert took(reader, stream, chance) == (frames, False)
    assert reader.held_bytes == 0
    found, kept = list[Frame](), b""
    while stream:
        size = chance.randrange(1, 400)
        piece = kept + stream[:size]
        found += reader.take(memoryview(piece))
        kept, stream = piece[len(piece) - reader.give_back() :], stream[size:]
        assert reader.held_bytes == 0
    assert (found, kept) == (frames, b"")


def test_a_frame_has_the_crc_of_its_bytes() -> None:
    for size in (*range(1, 40), *range(980, 1100), 4096, 5001, 1 << 20):
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


def test_a_frame_that_may_not_come_is_refused_before_its_bytes() -> None:
    """The limits may change between two frames: they are those of the second."""
    for kind in (b"J", b"D", b"A", b"H", b"x"):
        for limits in ({}, wire.ONLY_CONTROL, wire.FROM_MASTER):
            most = limits.get(kind, -1)
            with pytest.raises(WireViolation, match="bytes"):
                read(header(kind, most + 1), limits)
            if most > 0:
                assert read(header(kind, most), limits) == []
    reader = FrameReader(wire.ONLY_CONTROL)
    frames = reader.take(wire.control("follow", log_offset=77) + wire.ack_frame(9, 8))
    assert next(frames) == FOLLOW
    reader.limits = wire.FROM_FOLLOWER
    assert [*frames] == [Ack(9, 8)]


def test_a_length_that_was_changed_is_not_waited_for() -> None:
    """Heartbeats filled the frame that would never end, for hours, and kept the connection."""
    for bit in range(40):
        frame = bytearray(data_frame(0, bytes(1000)))
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireViolation):
            read(bytes(frame[: HEADER.size]))


def hello_with(**changes: object) -> bytes:
    return json.dumps({"is": "hello", **HELLO, **changes}).encode()


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
    "digits": hello_with(store="AB" * 8),
    "another version": hello_with(version=2),
    "segments": hello_with(segment_bytes=0),
    "epochs": hello_with(epochs=[[1, 0, 0]]),
    "epochs that fall": hello_with(epochs=EPOCHS[::-1]),
    "an epoch twice": hello_with(epochs=EPOCHS[:1] * 2),
    "long text": json.dumps({"is": "bye", "code": "closing", "text": "x" * 1001}).encode(),
}
NO_CONTROLS = (
    (b"D", bytes(8)), (b"D", b"\xff" * 9), (b"A", bytes(15)), (b"A", b"\xff" * 16), (b"A", bytes(8) + b"\xff" * 8),
    (b"H", b""), (b"H", b"\x80" + bytes(7)),
)  # fmt: skip


def test_values_in_frames_are_checked_and_unknown_keys_are_ignored() -> None:
    for kind, payload in (*((b"J", payload) for payload in WRONG.values()), *NO_CONTROLS):
        with pytest.raises(WireViolation):
            read(framed(kind, payload))
    assert read(framed(b"J", b'{"is":"follow","log_offset":77,"side":true}')) == [FOLLOW]


def test_the_newest_epochs_are_sent() -> None:
    many = [Epoch(1, opening, wire.OFFSET_MAX, "ab" * 8) for opening in range(600)]
    (hello,) = read(wire.control("hello", **{**HELLO, **wire.hello_of(None, many)}))
    assert isinstance(hello, Control)
    assert hello.fields["epochs"] == tuple(many[-wire.EPOCHS_MAX :])
