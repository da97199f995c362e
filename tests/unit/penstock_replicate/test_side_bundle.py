"""The files beside a log, as one object."""

import base64
import json
import zlib
from pathlib import Path

import pytest
from tests.shipped import Shipped

from penstock.files import Files
from penstock_replicate.beside import SideReader
from penstock_replicate.ship.side_bundle import decode_sides, encode_sides, read_sides


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    with Shipped(tmp_path / "store", tmp_path / "archive") as shipped:
        shipped.put(3)
        shipped.store.commit_offset("g", "t", 0, offset=1)
        found = read_sides(Files(), shipped.store.path, SideReader(Files(), shipped.store.path))
    assert {"penstock/geometry.json", "config/consumerOffset.json"} <= set(found)
    assert decode_sides(encode_sides(found)) == found


def packed(content: object) -> bytes:
    return zlib.compress(json.dumps(content).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", packed([]), packed(5), packed({"../x": ""}), packed({"/etc/passwd": ""}),
        packed({"penstock/replica": ""}), packed({"commitlog/0": ""}), packed({"penstock/geometry.json": 5}),
        packed({"penstock/geometry.json": "?"}), packed({"config/topics.json": base64.b64encode(b"[]").decode()}),
        packed({"penstock/geometry.json": base64.b64encode(bytes(1 << 17)).decode()}), packed({})[:-3],
        zlib.compress(b"[" * 100_000), zlib.compress(bytes(600 << 20)),
    ],
)  # fmt: skip
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it|no file|has|content"):
        decode_sides(data)
