"""Digests of full segments: checksums of each block of a file at the time it was sealed.

RocketMQ's CRC covers bodies only. A digest covers every byte of a segment that is full and durable, so a flipped bit in
a header, or any other silent change, is detected, and located within one block. Digests are in the side folder, which
RocketMQ ignores: one file per segment, written atomically. Layout of `penstock/digests/<20 digits>` (big-endian)::

    magic 8s  base_offset i64  size i64  mtime_ns i64  block_bytes u32  count u32  whole u32
    (crc32c u32  crc32 u32){count}  crc32 u32        # the last 4 bytes, over all before them

`whole` is the CRC-32C of the file. A block has two checksums of different polynomials, so that the repair of
one flipped bit can be verified. `mtime_ns` is the segment file's modification time when it was sealed. It is used
only if another program has written the store, which may have cut the log and filled the segment again.

A digest is redundant: if it is lost, the segment is read again. A file without valid content is treated as missing.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import attrs

from penstock.errors import OffsetError
from penstock.files import Entry, Files
from penstock.format.hashes import crc32c
from penstock.format.names import NAME_DIGITS, SIDE_FOLDER, segment_name
from penstock.format.record import crc32
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

BLOCK_BYTES = 1 << 20
_MAGIC = b"PSTKDIG1"
_HEAD = struct.Struct(">8sqqqIII")
_SUMS = struct.Struct(">II")
_CRC = struct.Struct(">I")
_FILE_BYTES_MAX = 1 << 24

Sums = tuple[int, int]


def sums_of(block: bytes) -> Sums:
    """Return both checksums of a block; releases the GIL for large blocks."""
    return crc32c(block), crc32(block)


@attrs.frozen(kw_only=True)
class Digest:
    """The digest of a segment: the CRC-32C of the file, and two checksums of each block."""

    base_offset: int
    size: int
    mtime_ns: int
    whole: int
    blocks: tuple[Sums, ...]
    block_bytes: int = BLOCK_BYTES

    def encode(self) -> bytes:
        """Return the content of the digest file."""
        head = _HEAD.pack(
            _MAGIC, self.base_offset, self.size, self.mtime_ns, self.block_bytes, len(self.blocks),
            self.whole,
        )  # fmt: skip
        body = head + b"".join(_SUMS.pack(*sums) for sums in self.blocks)
        return body + _CRC.pack(crc32(body))

    def differing(self, other: "Digest") -> list[tuple[int, int]]:
        """Return the ranges (position, stop) of the blocks in which two digests of equal size differ."""
        found: list[tuple[int, int]] = []
        for number, (mine, theirs) in enumerate(zip(self.blocks, other.blocks, strict=True)):
            if mine != theirs:
                start = number * self.block_bytes
                found.append((start, min(start + self.block_bytes, self.size)))
        return found


def file_bytes(segment_bytes: int) -> int:
    """Return the length of the digest file of a segment."""
    return _HEAD.size + -(-segment_bytes // BLOCK_BYTES) * _SUMS.size + _CRC.size


def decode(data: bytes) -> Digest | None:
    """Return the digest in the bytes of a file; None if they are not a valid digest."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    if _CRC.unpack(data[-_CRC.size :])[0] != crc32(data[: -_CRC.size]):
        return None
    magic, base, size, mtime_ns, block_bytes, count, whole = _HEAD.unpack_from(data)
    is_valid = magic == _MAGIC and size > 0 and block_bytes == BLOCK_BYTES
    if not is_valid or count != -(-size // block_bytes):
        return None
    if len(data) != _HEAD.size + count * _SUMS.size + _CRC.size:
        return None
    blocks = tuple(_SUMS.unpack_from(data, _HEAD.size + n * _SUMS.size) for n in range(count))
    return Digest(base_offset=base, size=size, mtime_ns=mtime_ns, whole=whole, blocks=blocks)


class Digests:
    """The folder of digests. One writer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self.folder = root / SIDE_FOLDER / "digests"

    def path(self, base_offset: int) -> Path:
        """Return the path of a segment's digest, whether it exists or not."""
        return self.folder / segment_name(base_offset)

    def bases(self) -> list[int]:
        """Return the base offsets of the segments that have a digest file, valid or not."""
        return [int(entry.name) for entry in self._entries()]

    def _entries(self) -> list[Entry]:
        if not self._files.is_folder(self.folder):
            return []
        return [
            entry
            for entry in self._files.entries(self.folder)
            if len(entry.name) >= NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()
        ]

    def read(self, segment: Segment) -> Digest | None:
        """Return the digest of a segment; None if there is no valid one."""
        try:
            data = self._files.read_whole(self.path(segment.base_offset), _FILE_BYTES_MAX)
        except OSError:
            return None
        digest = decode(data)
        if digest is None or (digest.base_offset, digest.size) != (
            segment.base_offset,
            segment.capacity,
        ):
            return None
        return digest

    def write(self, digest: Digest) -> None:
        """Write a digest durably; replaces an older one of the segment.

        The file is first written under another name in the parent folder. So a concurrent verification, in this
        process or another, sees either no file or the complete one, and the folder contains only digests.
        """
        self._files.make_folder_durably(self.folder)
        fresh = self.folder.parent / f"new-digests-{segment_name(digest.base_offset)}"
        self._files.write_whole(self.path(digest.base_offset), digest.encode(), fresh)

    def remove(self, base_offset: int) -> None:
        """Delete a segment's digest durably, if it exists."""
        path = self.path(base_offset)
        if self._files.exists(path) and not self._files.is_folder(path):
            self._files.remove(path)
            self._files.sync_folder(self.folder)

    def is_valid(self, digest: Digest, segment: Segment, *, is_ours: bool) -> bool:
        """Return whether a digest applies to the current segment file.

        If only Penstock has written the store, the digest applies, whatever the file contains. If another program has
        written it, the digest applies only if the file was not modified since.
        """
        return is_ours or digest.mtime_ns == self._files.mtime_ns(segment.path)

    def sift(self, log: SegmentedLog, end_offset: int, *, is_ours: bool) -> list[int]:
        """Delete the digests that do not apply to a full segment; returns the base offsets of the remaining ones."""
        full = {s.base_offset: s for s in log.segments if s.end_offset <= end_offset}
        left = []
        for entry in self._entries():
            base = int(entry.name)
            segment = full.get(base)
            # Checked by the file's length only: a store may have many thousands.
            is_kept = segment is not None and entry.size == file_bytes(segment.capacity)
            if segment is not None and not is_ours:
                digest = self.read(segment)
                is_kept = (
                    is_kept and digest is not None and self.is_valid(digest, segment, is_ours=False)
                )
            if is_kept:
                left.append(base)
            else:
                self.remove(base)
        return left


class DigestReader:
    """Reads one segment block by block and computes its digest. Not thread-safe.

    Holds the segment's lease only while it reads a block, so that retention never waits for it.
    """

    def __init__(self, files: Files, segment: Segment) -> None:
        self.segment = segment
        self._files = files
        self._file = files.open(segment.path)
        self._whole = 0
        self._blocks: list[Sums] = []

    @property
    def position(self) -> int:
        """The position up to which the segment was read."""
        return min(len(self._blocks) * BLOCK_BYTES, self.segment.capacity)

    def step(self) -> int:
        """Read the next block; returns its length, 0 after the last. `OffsetError` if the segment was deleted."""
        segment = self.segment
        size = min(BLOCK_BYTES, segment.capacity - self.position)
        if size == 0:
            return 0
        if not segment.lease.hold():
            raise OffsetError(segment.base_offset, segment.base_offset, segment.end_offset)
        try:
            block = self._file.pread(size, self.position)
        finally:
            segment.lease.release()
        if len(block) < size:
            raise OffsetError(segment.base_offset + self.position, segment.base_offset, 0)
        self._whole = crc32c(block, self._whole)
        self._blocks.append(sums_of(block))
        return size

    def digest(self) -> Digest:
        """Return the digest; call it after all blocks were read."""
        return Digest(
            base_offset=self.segment.base_offset, size=self.segment.capacity, whole=self._whole,
            mtime_ns=self._files.mtime_ns(self.segment.path), blocks=tuple(self._blocks),
        )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sum_up(files: Files, segment: Segment) -> Digest:
    """Return the digest of a segment's current content."""
    reader = DigestReader(files, segment)
    try:
        while reader.step():
            pass
        return reader.digest()
    finally:
        reader.close()


def check_digest(
    files: Files, digests: Digests, segment: Segment, *, is_ours: bool
) -> Iterator[tuple[int, int]]:
    """Yield the ranges (position, stop) in which a segment differs from its digest, if it has one."""
    known = digests.read(segment)
    if known is not None and digests.is_valid(known, segment, is_ours=is_ours):
        yield from known.differing(sum_up(files, segment))
