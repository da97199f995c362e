"""The files of a store: numbers, sizes, and the disk space they take.

The store may be written meanwhile, by Penstock or by a broker, so files may come and go; nothing is changed.
"""

import os
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Names of folders below the store's, and what their files are.
_PARTS = {
    "commitlog": "log",
    "consumequeue": "queues",
    "consumequeue_ext": "queues",
    "index": "index",
    "config": "offsets and broker settings",
    "penstock": "Penstock's own files",
}
_SAVED = "saved by repairs"
_OTHER = "other"
# Slots and entries in use, at the end of an index file's header; see docs/format.md.
_INDEX_COUNTS = struct.Struct(">32xii")
_SLOT, _ENTRY = 4, 20


class SpaceUsed(NamedTuple):
    """One kind of files: how many, their sizes added up, and the bytes of the disk that they take."""

    part: str
    files: int
    size: int
    allocated: int


class _File(NamedTuple):
    place: Path  # relative to the store
    size: int
    allocated: int


def parts(root: Path) -> list[SpaceUsed]:
    """Return the kinds of files in a store, those that take the most space first."""
    found: dict[str, SpaceUsed] = {}
    for file in _files(root):
        name = _part(file.place)
        before = found.get(name, SpaceUsed(name, 0, 0, 0))
        found[name] = SpaceUsed(
            name, before.files + 1, before.size + file.size, before.allocated + file.allocated
        )
    return sorted(found.values(), key=lambda part: (-part.allocated, part.part))


def queue_bytes(root: Path) -> dict[str, int]:
    """Return the bytes of the disk that the queue files of each topic take."""
    found: Counter[str] = Counter()
    for file in _files(root):
        if _part(file.place) == "queues" and len(file.place.parts) > 2:  # noqa: PLR2004 - folder, topic, rest
            found[file.place.parts[1]] += file.allocated
    return dict(found)


def index_used(root: Path, slots: int) -> int:
    """Return the bytes that are in use in the index files, of `slots` hash slots each: headers, slots and entries."""
    used = 0
    for file in _files(root, "index"):
        try:
            with (root / file.place).open("rb") as opened:
                _, entries = _INDEX_COUNTS.unpack(opened.read(_INDEX_COUNTS.size))
        except (OSError, struct.error):
            continue
        used += min(_INDEX_COUNTS.size + slots * _SLOT + max(entries, 0) * _ENTRY, file.size)
    return used


def file_sizes(root: Path, folder: str) -> list[tuple[int, int]]:
    """Return (size, number of files) of the numbered files below a folder of the store, the most frequent first."""
    counted = Counter(
        file.size for file in _files(root, folder) if file.place.name.isascii() and file.place.name.isdigit()
    )  # fmt: skip
    return counted.most_common()


def _part(place: Path) -> str:
    top, *rest = place.parts
    if top == "penstock" and rest and rest[0] == "saved":
        return _SAVED
    return _PARTS.get(top, _OTHER) if rest else _OTHER


def _files(root: Path, folder: str = "") -> Iterator[_File]:
    """Yield the files below a folder of a store; those that are removed meanwhile are left out."""
    for path, _, names in os.walk(root / folder):
        for name in names:
            file = Path(path, name)
            try:
                found = file.lstat()
            except FileNotFoundError:
                continue
            yield _File(file.relative_to(root), found.st_size, found.st_blocks * 512)
