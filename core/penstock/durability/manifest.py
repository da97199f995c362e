"""Summaries of the dispatchers' files, written at a clean close for the next opening: the file `penstock/manifest`.

A store of 20,000 queues has as many files, and opening each of them costs more than the rest of an opening. So a
dispatcher may summarise its files (`Dispatcher.closing_summary`), and gets the summary back when it loads.

Layout (big-endian)::

    file := magic 8s  digest 32s  count u32  part{count}  crc32c u32     # the last 4 bytes, over all before them
    part := name 24s  size u64  byte{size}

`digest` is the digest in the clean-close file: over the names, sizes and times of all files that the clean-close file
covers. The manifest is written before the clean-close file and removed after it. It is valid only beside a clean-close
file with the same digest, and only if the files still have that digest: then nobody has written them since. Otherwise,
or if any byte of it is wrong, it is ignored, and dispatchers read their files.

It holds nothing that the files do not hold. Losing it costs time at the next opening, never data.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.file import NO_ROOM
from penstock.format.crc32c import crc32c
from penstock.format.names import SIDE_FOLDER

logger = get_logger(__name__)

_MAGIC = b"PSTKMAN1"
_HEAD = struct.Struct(">8s32sI")
_PART = struct.Struct(">24sQ")
_CRC = struct.Struct(">I")
# A queue takes about 50 bytes, plus some topic names; no store has enough queues to reach this limit.
MANIFEST_BYTES_MAX = 256 << 20


def manifest_path(root: Path) -> Path:
    """Return the path of a store's manifest."""
    return root / SIDE_FOLDER / "manifest"


def encode_manifest(digest: str, parts: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a manifest: the digest in the clean-close file, and the summary of each dispatcher."""
    chunks = [_HEAD.pack(_MAGIC, bytes.fromhex(digest), len(parts))]
    for name, summary in sorted(parts.items()):
        chunks += [_PART.pack(name.encode()[:24], len(summary)), summary]
    body = b"".join(chunks)
    return body + _CRC.pack(crc32c(body))


def decode_manifest(data: bytes) -> tuple[str, dict[str, bytes]] | None:
    """Return the digest and the summaries of a manifest; None if any byte of it is wrong."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    body = memoryview(data)[: -_CRC.size]
    magic, digest, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(bytes(body)):
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
    """Return the digest and the summaries of a store's manifest; None if it is missing or not valid."""
    try:
        return decode_manifest(files.read_whole(manifest_path(root), MANIFEST_BYTES_MAX))
    except OSError:
        return None


def summaries_for(files: Files, root: Path, digest: str) -> dict[str, bytes]:
    """Return each dispatcher's summary of the files with this digest; empty if there is no such manifest."""
    found = read_manifest(files, root)
    return found[1] if found is not None and found[0] == digest else {}


def write_manifest(files: Files, root: Path, digest: str, parts: Mapping[str, bytes]) -> None:
    """Write a manifest durably; write none if there are no summaries or the disk has no room."""
    data = encode_manifest(digest, parts)
    if not parts or len(data) > MANIFEST_BYTES_MAX:
        return
    try:
        files.write_whole(manifest_path(root), data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning(
            "%s: the disk has no room for the manifest; no data is lost, the next opening only takes longer",
            root,
        )
