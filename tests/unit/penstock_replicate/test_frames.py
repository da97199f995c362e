import contextlib
import json
import zlib

import pytest

from penstock_replicate.wire import frames
from penstock_replicate.wire.decoding import FrameDecoder
from penstock_replicate.wire.frames import (
    HEADER,
    Ack,
    Auth,
    CoverageNote,
    Data,
    DigestAnswer,
    DigestQuestion,
    Follow,
    Frame,
    FrameType,
    Heartbeat,
    Hello,
    RangeDigest,
    Refused,
    Removed,
    Side,
    decode,
    encode,
    encode_data_header,
    parse_header,
    side_frames,
)
from penstock_replicate.wire.limits import DATA_BYTES_MAX, WireViolation

HELLO = Hello(
    history="ab" * 16, epochs=((1, 0), (2, 77)), segment_bytes=4096, min_offset=0, end_offset=99, store="s",
    nonce="cd" * 32, needs_proof=True,
)  # fmt: skip
SAMPLES: list[Frame] = [
    HELLO,
    Auth(bytes(range(32))),
    Follow(end_offset=99, is_empty=False, digests=(RangeDigest(0, 9, "00" * 32),)),
    Refused("secret", "no", {"a": 1, "b": "c", "d": None}),
    Data(5, b"abc"),
    Ack(9, 8),
    Side("config/topics.json", b"{}", True),
    Removed(7, "orders"),
    CoverageNote(
        written=((0, 8, "crc32"), (8, None, "crc32+record")), perhaps=((0, 9),), gaps=((0, 9),)
    ),
    DigestQuestion(((0, 9), (9, 10))),
    DigestAnswer((RangeDigest(0, 9, None), RangeDigest(0, 9, "ff" * 32))),
    Heartbeat(1, 2),
]


@pytest.mark.parametrize("frame", SAMPLES, ids=lambda frame: frame.type.name)
def test_what_is_encoded_is_decoded(frame: Frame) -> None:
    whole = encode(frame)
    kind, size = parse_header(whole, frozenset(FrameType))
    assert (kind, size) == (frame.type, len(whole) - HEADER.size)
    assert decode(kind, whole[HEADER.size :]) == frame


@pytest.mark.parametrize("frame", SAMPLES, ids=lambda frame: frame.type.name)
def test_no_changed_frame_is_believed(frame: Frame) -> None:
    whole = encode(frame)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        decoder = FrameDecoder(frozenset(FrameType))
        # What has another length is not complete, or too long.
        with contextlib.suppress(WireViolation):
            assert list(decoder.frames(changed)) == []


def test_every_type_has_a_sample_and_a_limit() -> None:
    assert {frame.type for frame in SAMPLES} == set(FrameType) == set(frames.PAYLOAD_BYTES_MAX)


@pytest.mark.parametrize("frame", SAMPLES, ids=lambda frame: frame.type.name)
def test_a_frame_that_is_cut_is_refused_or_another_one(frame: Frame) -> None:
    payload = frame.payload()
    for stop in range(len(payload)):
        try:
            assert decode(frame.type, payload[:stop]) != frame
        except WireViolation:
            continue


def test_compressed_data_is_decompressed_in_bounded_memory() -> None:
    body = b"x" * 10_000
    zipped = zlib.compress(body)
    whole = encode_data_header(7, len(zipped), zipped=True) + zipped
    assert decode(FrameType.DATA, whole[HEADER.size :]) == Data(7, body)
    bomb = zlib.compress(bytes(DATA_BYTES_MAX + 1))
    for bad in (bomb, zipped[:-1], zipped + b"x", b"no zlib"):
        with pytest.raises(WireViolation):
            decode(
                FrameType.DATA, encode_data_header(0, len(bad), zipped=True)[HEADER.size :] + bad
            )


@pytest.mark.parametrize(
    "header", [b"\0\0\0\0\x05", b"\xff\xff\xff\xff\x05", b"\0\0\0\x12\x06", b"\0\0\0\x02\x00", b"\0\0\0\x02\x63"]
)  # fmt: skip
def test_a_header_out_of_limits_is_refused_before_its_payload(header: bytes) -> None:
    with pytest.raises(WireViolation):
        parse_header(header + bytes(4), frozenset(FrameType))


def test_a_frame_that_is_not_expected_is_refused() -> None:
    with pytest.raises(WireViolation, match="ACK that is not expected"):
        parse_header(encode(Ack(1, 1)), frozenset({FrameType.HELLO}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 0), ("version", "1"), ("history", "AB" * 16), ("history", "ab"), ("epochs", [[1]]), ("epochs", [[2, 0], [1, 9]]),
        ("epochs", [[1, 9], [2, 0]]), ("epochs", [[n, 0] for n in range(5000)]), ("segment_bytes", True), ("segment_bytes", 0),
        ("min_offset", -1), ("min_offset", 100), ("end_offset", 1 << 63), ("end_offset", 1.5), ("store", "s" * 256), ("nonce", ""),
        ("needs_proof", 1), ("epochs", {}), ("store", None),
    ],
)  # fmt: skip
def test_a_hello_with_a_wrong_value_is_refused(field: str, value: object) -> None:
    facts = json.loads(HELLO.payload()) | {field: value}
    with pytest.raises(WireViolation):
        Hello.parse(json.dumps(facts).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"1" * 5000])
def test_a_payload_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(WireViolation):
        Follow.parse(text)


def test_a_follower_without_a_log_has_no_end_and_no_digests() -> None:
    for wrong in (
        Follow(end_offset=1, is_empty=True),
        Follow(end_offset=8, is_empty=False, digests=(RangeDigest(0, 9, None),)),
        Follow(end_offset=9 << 20, is_empty=False, digests=(RangeDigest(0, 9 << 20, None),)),
    ):
        with pytest.raises(WireViolation):
            Follow.parse(wrong.payload())


def test_an_acknowledgement_is_not_durable_beyond_what_it_has() -> None:
    with pytest.raises(WireViolation):
        Ack.parse(Ack(8, 9).payload())


def test_a_large_file_comes_in_parts() -> None:
    parts = list(side_frames("f", bytes(DATA_BYTES_MAX + 1)))
    assert [part.more for part in parts] == [True, False]
    assert list(side_frames("f", b"")) == [Side("f", b"")]
