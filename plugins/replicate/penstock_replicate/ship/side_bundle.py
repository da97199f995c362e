"""The files beside the log as one object: JSON of names and contents in base64, compressed by zlib.

Besides what travels to any copy (`penstock_replicate.beside`), an archive holds what a store needs that is made again from nothing:
its sizes, the ranges that Penstock wrote, and the removed topics.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from penstock.files import Files
from penstock_replicate.beside import SideReader
from penstock_replicate.beside.side_names import SIDE_NAMES, check_content

GEOMETRY, REMOVED_TOPICS = "penstock/geometry.json", "penstock/removed-topics"
# Small files of Penstock's own, with the largest content that each may have.
OWN_NAMES = {GEOMETRY: 1 << 16, REMOVED_TOPICS: 16 << 20}
BUNDLE_BYTES_MAX = 512 << 20


def read_sides(files: Files, root: Path, reader: SideReader) -> dict[str, bytes]:
    """Return name to content of the files beside a store's log, of those that are there."""
    found = reader.contents()
    for name, bytes_max in OWN_NAMES.items():
        try:
            found[name] = files.read_whole(root / name, bytes_max)
        except FileNotFoundError:
            continue
    return found


def encode_sides(contents: Mapping[str, bytes]) -> bytes:
    """Return the object that holds these files."""
    text = {name: base64.b64encode(data).decode() for name, data in sorted(contents.items())}
    return zlib.compress(json.dumps(text).encode())


def decode_sides(data: bytes) -> dict[str, bytes]:
    """Return name to content; raises `ValueError` for bytes that are no such object, or have a file that no archive holds."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, BUNDLE_BYTES_MAX)
        if not unpacker.eof:
            raise ValueError("it is not whole, or too large")
        packed = json.loads(text)
        if not isinstance(packed, dict):
            raise ValueError("it is not an object")  # noqa: TRY004 - callers handle both alike
        return {name: _content(name, content) for name, content in packed.items()}
    except (zlib.error, binascii.Error, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"it cannot be understood ({error})") from error


def _content(name: str, packed: str) -> bytes:
    data = base64.b64decode(packed, validate=True)
    if name in SIDE_NAMES:
        check_content(name, data)
    elif name not in OWN_NAMES:
        raise ValueError(f"no file {name[:80]!r} is beside a log")
    elif len(data) > OWN_NAMES[name]:
        raise ValueError(f"{name} has {len(data)} bytes, the limit is {OWN_NAMES[name]}")
    return data
