"""What dispatchers note of their files at a clean close, for the next opening: the file `penstock/manifest`.

A store of 20,000 queues has as many files, and to open each of them costs more than all else of an opening. So a
dispatcher may sum up what it knows of its files (`Dispatcher.closing_summary`), and gets that back when it loads.

Layout (big-endian)::

    file := magic 8s  digest 32s  count u32  part{count}  crc32c u32     # the last 4 bytes, over all before them
    part := name 24s  size u64  byte{size}

`digest` is the one of the clean mark: over the names, sizes and times of all files that the mark vouches for. The
file is written before that mark and removed after it, so it says something only beside a clean mark, only with the
same digest, and only if the files give that digest still: then nobody has written them since. Otherwise, or where a
byte of it is wrong, it counts as not there, and dispatchers read their files.

It says nothing that the files do not say. Losing it costs time at the next opening, never data.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import crc32c

from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.file import NO_ROOM
from penstock.format.names import SIDE_FOLDER

logger = get_logger(__name__)

_MAGIC = b"PSTKMAN1"
_HEAD = struct.Struct(">8s32sI")
_PART = struct.Struct(">24sQ")
_CRC = struct.Struct(">I")
# About 50 bytes a queue, and a topic's name now and then: that many queues no store has.
MANIFEST_BYTES_MAX = 256 << 20


def manifest_path(root: Path) -> Path:
    """Return where a store's manifest is."""
    return root / SIDE_FOLDER / "manifest"


def encode_manifest(digest: str, parts: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a manifest: the digest of a clean mark, and the summary of each dispatcher."""
    pieces = [_HEAD.pack(_MAGIC, bytes.fromhex(digest), len(parts))]
    for name, summary in sorted(parts.items()):
        pieces += [_PART.pack(name.encode()[:24], len(summary)), summary]
    body = b"".join(pieces)
    return body + _CRC.pack(crc32c.crc32c(body))


def decode_manifest(data: bytes) -> tuple[str, dict[str, bytes]] | None:
    """Return the digest and the summaries of a manifest; None where any byte of it is wrong."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    body = memoryview(data)[: -_CRC.size]
    magic, digest, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or _CRC.unpack(data[-_CRC.size :])[0] != crc32c.crc32c(bytes(body)):
        return None
    parts, at = dict[str, bytes](), _HEAD.size
    while at < len(body) and len(parts) < count:
        if at + _PART.size > len(body):
            return None
        name, size = _PART.unpack_from(body, at)
        start = at + _PART.size
        at = start + size
        if at > len(body):
            return None
        parts[name.rstrip(b"\0").decode("utf-8", "replace")] = bytes(body[start:at])
    return (digest.hex(), parts) if at == len(body) and len(parts) == count else None


def read_manifest(files: Files, root: Path) -> tuple[str, dict[str, bytes]] | None:
    """Return what a store's manifest says; None where there is none, or none that can be understood."""
    try:
        return decode_manifest(files.read_whole(manifest_path(root), MANIFEST_BYTES_MAX))
    except OSError:
        return None


def summaries_for(files: Files, root: Path, digest: str) -> dict[str, bytes]:
    """Return each dispatcher's summary of the files that have this digest; empty where there is none."""
    found = read_manifest(files, root)
    return found[1] if found is not None and found[0] == digest else {}


def write_manifest(files: Files, root: Path, digest: str, parts: Mapping[str, bytes]) -> None:
    """Write a manifest, durably; none where there is nothing to say, or no room to say it."""
    data = encode_manifest(digest, parts)
    if not parts or len(data) > MANIFEST_BYTES_MAX:
        return
    try:
        files.write_whole(manifest_path(root), data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning("%s: no room for the manifest, so the next opening takes longer", root)
