"""Frames of the remoting protocol: both codecs, and bytes that are none."""

import json
import random
import struct
import tracemalloc
from collections.abc import Callable

import pytest

from penstock_replicate.remoting.remoting_frames import (
    BINARY_CODEC,
    FIELDS_MAX,
    FRAME_BYTES_MAX,
    IS_ONE_WAY,
    JSON_CODEC,
    RemotingDecoder,
    RemotingError,
    RemotingFrame,
    decode,
)

FRAME = RemotingFrame(
    code=103, opaque=7, remark="wörds", fields={"brokerName": "a", "empty": ""}, body=b"\0body"
)


def framed(mark: int, rest: bytes) -> bytes:
    return struct.pack(">II", 4 + len(rest), mark) + rest


@pytest.mark.parametrize("codec", [JSON_CODEC, BINARY_CODEC])
def test_a_frame_comes_back_from_its_bytes(codec: int) -> None:
    sent = RemotingFrame(**{**{n: getattr(FRAME, n) for n in ("code", "opaque", "remark", "fields", "body")}, "codec": codec})  # fmt: skip
    assert decode(sent.encode()[4:]) == sent
    answer = decode(sent.answer(3, remark="no").encode()[4:])
    assert (answer.codec, answer.opaque, answer.code, answer.is_response) == (codec, 7, 3, True)


def test_the_binary_header_is_laid_out_as_javas() -> None:
    raw = RemotingFrame(code=21, opaque=5, version=479, codec=BINARY_CODEC, fields={"a": "bc"}).encode()  # fmt: skip
    assert raw.hex() == "000000220100001e00150301df00000005000000000000000000000009000161000000026263"  # fmt: skip


def test_a_header_of_java_is_read() -> None:
    head = b'{"code":0,"extFields":{"a":"1","gone":null},"flag":1,"language":"JAVA","opaque":3,"serializeTypeCurrentRPC":"JSON","version":479,"more":[]}'
    frame = decode(struct.pack(">I", len(head)) + head + b"x")
    assert (frame.code, frame.fields, frame.body, frame.version) == (0, {"a": "1"}, b"x", 479)
    bare = b'{"code":21,"opaque":0}'
    assert decode(struct.pack(">I", len(bare)) + bare).fields == {}


def test_one_way_is_told_from_the_flag() -> None:
    assert RemotingFrame(code=15, flag=IS_ONE_WAY).is_one_way
    assert not RemotingFrame(code=15).is_one_way


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_come_out_however_their_bytes_come_in(step: int) -> None:
    sent = [RemotingFrame(code=n, body=bytes(n), codec=n % 2) for n in range(50)]
    stream = b"".join(frame.encode() for frame in sent)
    decoder, found = RemotingDecoder(), []
    for at in range(0, len(stream), step):
        found += decoder.feed(stream[at : at + step])
    assert found == sent


BINARY = struct.Struct(">hBhiii")


def json_header(**head: object) -> bytes:
    raw = json.dumps(head).encode()
    return framed(len(raw), raw)


def binary_header(raw: bytes) -> bytes:
    return framed(1 << 24 | len(raw), raw)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0), struct.pack(">I", 3), struct.pack(">I", FRAME_BYTES_MAX + 1), b"\xff" * 4, b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",  # TLS
        framed(100, b""), framed(0xFFFFFF, b"{}"), framed(2 << 24, b""), framed(2, b"[]"), framed(2, b"{"), framed(0, b""),
        framed(1, b"\xff"), json_header(code="21"), json_header(code=1 << 40), json_header(code=True),
        json_header(code=1, opaque=1.5), json_header(code=1, extFields=[1]),
        json_header(code=1, extFields={str(n): "" for n in range(FIELDS_MAX + 1)}),
        framed(200_000, b"[" * 200_000), framed(100_000, b"1" * 100_000),
        binary_header(b""), binary_header(bytes(20)), binary_header(BINARY.pack(1, 0, 0, 0, 0, -1) + bytes(4)),
        binary_header(BINARY.pack(1, 0, 0, 0, 0, 1 << 30) + bytes(4)),
        binary_header(BINARY.pack(1, 0, 0, 0, 0, 0) + struct.pack(">i", 1 << 30)),
        binary_header(BINARY.pack(1, 0, 0, 0, 0, 0) + struct.pack(">i", -1)),
        binary_header(BINARY.pack(1, 0, 0, 0, 0, 0) + struct.pack(">ih", 2, -5)),
        binary_header(BINARY.pack(1, 0, 0, 0, 0, 0) + struct.pack(">ih", 2, 300)),
        binary_header(BINARY.pack(1, 0, 0, 0, 0, 1) + b"\xff" + bytes(4)),
    ],
)  # fmt: skip
def test_bytes_that_are_no_frame_are_an_error(data: bytes) -> None:
    with pytest.raises(RemotingError):
        RemotingDecoder().feed(data)


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(ValueError, match="too large"):
        RemotingFrame(code=1, body=bytes(FRAME_BYTES_MAX)).encode()
    with pytest.raises(ValueError, match="too large"):
        RemotingFrame(code=1, fields={"x": "y" * (2 << 20)}).encode()


def changed(raw: bytes, chance: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data))
        how = chance.randrange(3)
        if how == 0:
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif how == 1:
            del data[at : at + chance.randrange(1, 9)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 9))
        if not data:
            break
    return bytes(data)


def test_garbled_streams_end_in_an_error_or_in_frames_and_take_little_memory() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    kinds: list[Callable[[], RemotingFrame]] = [
        lambda: FRAME,
        lambda: FRAME.answer(1, remark="x" * 50, body=bytes(100)),
        lambda: RemotingFrame(code=-5, fields={str(n): "v" for n in range(5)}, codec=BINARY_CODEC),
    ]
    tracemalloc.start()
    for _ in range(3000):
        stream = changed(b"".join(chance.choice(kinds)().encode() for _ in range(3)), chance)
        decoder = RemotingDecoder()
        try:
            for at in range(0, len(stream), 64):
                decoder.feed(stream[at : at + 64])
        except RemotingError:
            continue
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
