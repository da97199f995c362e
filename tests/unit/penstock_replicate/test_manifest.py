"""A manifest of any content is the one that was written, or refused."""

import contextlib
import hashlib
import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_replicate.ship.manifest import (
    LogPiece,
    Manifest,
    ManifestName,
    SideVersion,
    decode_manifest,
    encode_manifest,
    manifest_names,
    side_numbers,
)

SEGMENT = 4096
SHA = "0f" * 32


def piece(start: int, stop: int, **changed: Any) -> LogPiece:
    given: dict[str, Any] = {
        "start": start, "stop": stop, "size": stop - start, "sha256": SHA, "compress": "none", "first_ms": 5,
        "last_ms": 6, "weight": 1, **changed,
    }  # fmt: skip
    return LogPiece(**given)


WHOLE = Manifest(
    number=7, time_ms=1000, history="ab" * 16, epoch=2, segment_bytes=SEGMENT,
    pieces=(piece(0, SEGMENT, weight=0), piece(SEGMENT, 5000), piece(8192, 9000, compress="zlib", size=10)),
    tail_start=4100, tail_sha256=SHA,
    side=SideVersion(number=5, size=10, sha256=SHA, log_offset=8000, time_ms=900),
)  # fmt: skip
NAME = ManifestName(7, 1000)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode_manifest(encode_manifest(WHOLE), NAME) == WHOLE
    empty = attrs.evolve(WHOLE, pieces=(), tail_start=0, side=None)
    assert decode_manifest(encode_manifest(empty), NAME) == empty
    assert (empty.begin, empty.end, WHOLE.begin, WHOLE.end) == (0, 0, 0, 9000)


def test_each_flip_and_each_beginning_is_refused() -> None:
    data = encode_manifest(WHOLE)
    for at in range(len(data)):
        with pytest.raises(ValueError, match="digest"):
            decode_manifest(data[:at], NAME)
        with pytest.raises(ValueError, match="digest"):
            decode_manifest(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], NAME)


def signed(about: object) -> bytes:
    line = json.dumps(about).encode()
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


HOSTILE = [
    ("format", 2), ("number", 8), ("number", -1), ("time_ms", "1000"), ("history", "../../etc/passwd"),
    ("history", 5), ("epoch", -1), ("epoch", True), ("segment_bytes", 5000), ("segment_bytes", 1 << 40), ("segment_bytes", 0),
    ("pieces", None), ("pieces", {}), ("pieces", [1]), ("pieces", [[]]), ("tail", []), ("tail", [1 << 50, SHA]),
    ("tail", [0, "x"]), ("side", 5), ("side", {}), ("side", []), ("side", {"number": 8, "size": 1, "sha256": SHA, "log_offset": 0, "time_ms": 0}),
    ("side", {"number": 5, "size": 1 << 50, "sha256": SHA, "log_offset": 0, "time_ms": 0}),
]  # fmt: skip
HOSTILE_PIECES = [
    {"start": -1}, {"stop": 0}, {"stop": SEGMENT + 1}, {"start": 1 << 70, "stop": 1 << 71}, {"size": 1 << 60}, {"size": 1},
    {"sha256": "../" * 20}, {"sha256": SHA.upper()}, {"compress": "../../x"}, {"compress": None}, {"first_ms": -1}, {"weight": 1.5},
    {"start": "0"}, {"compress": "zlib", "size": 0}, {"compress": "zlib", "size": 6000},
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), HOSTILE)
def test_a_hostile_value_is_refused(key: str, value: object) -> None:
    about = json.loads(encode_manifest(WHOLE).partition(b"\n")[0])
    with pytest.raises(ValueError, match="cannot be understood"):
        decode_manifest(signed({**about, key: value}), NAME)
    del about[key]
    with pytest.raises(ValueError, match="cannot be understood"):
        decode_manifest(signed(about), NAME)


@pytest.mark.parametrize("changed", HOSTILE_PIECES, ids=str)
def test_a_hostile_piece_is_refused(changed: dict[str, Any]) -> None:
    pieces = (attrs.evolve(piece(0, SEGMENT), **changed), *WHOLE.pieces[1:])
    with pytest.raises(ValueError, match="cannot be understood"):
        decode_manifest(encode_manifest(attrs.evolve(WHOLE, pieces=pieces)), NAME)


def test_pieces_must_ascend() -> None:
    pieces = (piece(0, 4000), piece(3000, SEGMENT))
    with pytest.raises(ValueError, match="start"):
        decode_manifest(encode_manifest(attrs.evolve(WHOLE, pieces=pieces)), NAME)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from([key for key, _ in HOSTILE]), ANY) | ANY)
def test_any_json_is_refused_or_read(value: Any) -> None:
    about = json.loads(encode_manifest(WHOLE).partition(b"\n")[0])
    with contextlib.suppress(ValueError):
        decode_manifest(signed({**about, **value} if isinstance(value, dict) else value), NAME)


def test_deep_json_is_refused() -> None:
    line = b"[" * 100_000
    data = line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    with pytest.raises(ValueError, match="cannot be understood"):
        decode_manifest(data, NAME)


def test_names_are_recognised() -> None:
    names = ["../x", f"{2:020d}-77.json", f"{1:020d}-99.json", "1-2.json", f"{3:020d}-.json", f"{3:020d}-5.json.new"]  # fmt: skip
    assert manifest_names(names) == [ManifestName(1, 99), ManifestName(2, 77)]
    assert side_numbers([f"{4:020d}.zlib", "4.zlib", f"{2:020d}.zlib", "../4"]) == [2, 4]
    assert WHOLE.name == f"manifests/{7:020d}-1000.json"
    assert WHOLE.pieces[2].name == f"log/{8192:020d}-{9000:020d}.zlib"
