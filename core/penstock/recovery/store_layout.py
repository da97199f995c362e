"""Determines whether a folder is a store, and with which file sizes it was created.

A store created by Penstock has its geometry in `penstock/geometry.json`. For a store created by Java,
the sizes are derived from its files. The length of an index file is the sum of two sizes, so RocketMQ's usual
ratio (four entries per slot) is assumed unless the configuration gives one of them.

The same file contains the store's profile (see `profiles`).
"""

import json
from pathlib import Path

import attrs

from penstock.config.profiles import BROKER, EMBEDDED, KNOWN, PROFILES, Profile
from penstock.contracts.base import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    QUEUE_ENTRY_SIZE,
    Geometry,
)
from penstock.errors import (
    ConfigError,
    CorruptionError,
    GeometryError,
    NotAStoreError,
    StrayFileError,
)
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

_OWN_NAMES = frozenset(
    [
        "commitlog",
        "consumequeue",
        "consumequeue_ext",
        "batchconsumequeue",
        "index",
        "config",
        "lock",
        "abort",
        "abort.bak",
        "checkpoint",
        "penstock",
        "timerwheel",
        "timerlog",
        "compaction",
    ]
)
# Names that, if they exist, must be folders or regular files; those after them are checked only for writing.
_FOLDERS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config", "penstock")
_FILES = ("checkpoint", "abort", "lock", "penstock/progress")
_WRITTEN_FOLDERS = ("penstock/saved", "penstock/repair", "penstock/requests")
_WHOLE = ("checkpoint", "abort", "penstock/progress", "penstock/clean", "penstock/ranges", "penstock/holder",
          "penstock/geometry.json", "penstock/repair/journal", "penstock/repair/ready")  # fmt: skip
# `geometry.json` itself has its own error.
_WRITTEN_FILES = (
    *(name for name in _WHOLE if not name.endswith(".json")),
    *(f"{name}.new" for name in _WHOLE),
)
_USUAL_ENTRIES_A_SLOT = 4
_ADVICE = (
    "remove it: sizes are then derived from the files, all messages are kept, and unless settings say otherwise "
    "nothing is deleted and checksums cover only bodies"
)
# The exceptions that reading a small JSON file with arbitrary content may raise.
_NOT_UNDERSTOOD = (
    ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError, ConfigError,
)  # fmt: skip


def is_store(files: Files, root: Path) -> bool:
    """Return whether `root` holds a store; an absent or empty folder does not hold one yet.

    Raises `NotAStoreError` for anything else.
    """
    if not files.exists(root):
        return False
    if not files.is_folder(root):
        raise NotAStoreError(root, "it is a symbolic link that leads to no folder, or not a folder")
    names = {entry.name: entry for entry in files.entries(root)}
    if "commitlog" in names:
        if not names["commitlog"].is_folder:
            raise NotAStoreError(root, "its commitlog is a symbolic link, or not a folder")
        return True
    # A crash during the first opening may leave only a temporary file that was not renamed yet.
    strangers = sorted(name for name in names if name.removesuffix(".new") not in _OWN_NAMES)
    if strangers:
        raise NotAStoreError(
            root, f"it has no commitlog folder, but other content, for example {strangers[0]!r}"
        )
    return False


def no_store(files: Files, root: Path) -> NotAStoreError:
    """Return the error for a folder in which `is_store` has found no store."""
    if files.exists(root):
        return NotAStoreError(root, "there is no commitlog folder in it")
    return NotAStoreError(
        root,
        "it does not exist; check the path. Opening it for writing, or penstock init, creates a store there",
    )


def check_layout(files: Files, root: Path, *, writes: bool) -> None:
    """Raise `StrayFileError` if a path that the store will use is a symbolic link or the wrong kind of file."""
    if not files.exists(root):
        return
    for name in _FOLDERS + (_WRITTEN_FOLDERS if writes else ()):
        path = root / name
        if files.exists(path) and not files.is_folder(path):
            raise StrayFileError(path, "it must be a folder, not a symbolic link or a file")
    for name in _FILES + (_WRITTEN_FILES if writes else ()):
        path = root / name
        found = files.entries(path.parent) if files.exists(path) else []
        if any(entry.name == path.name and not entry.is_file for entry in found):
            raise StrayFileError(path, "it must be a regular file, not a symbolic link or a folder")


def write_geometry(files: Files, root: Path, geometry: Geometry, profile: Profile) -> None:
    """Write the sizes and the profile of a store that was just created, or first opened for writing by Penstock."""
    text = json.dumps({**attrs.asdict(geometry), "profile": profile.name}, indent=2)
    files.write_whole(root / SIDE_FOLDER / "geometry.json", text.encode())


def find_profile(files: Files, root: Path, asked: str | None) -> Profile:
    """Return the profile of the store at `root`: the requested one, otherwise the one it was created with."""
    if asked is not None:
        return PROFILES[asked]
    return own_profile(files, root) or EMBEDDED


def own_profile(files: Files, root: Path) -> Profile | None:
    """Return the profile that a store was created with; None if there is no store yet."""
    path = root / SIDE_FOLDER / "geometry.json"
    if not files.is_folder(root):
        return None
    if not files.is_folder(path.parent) or not files.exists(path):
        return BROKER if files.is_folder(root / "commitlog") else None
    try:
        return KNOWN[json.loads(files.read_whole(path, 1 << 16))["profile"]]
    except (AttributeError, *_NOT_UNDERSTOOD) as error:
        wanted = f"a profile, one of {', '.join(KNOWN)}"
        raise CorruptionError(path, 0, wanted, str(error), _ADVICE) from error


def was_made_here(files: Files, root: Path) -> bool:
    """Return whether Penstock created the store, or will create it; False for a broker's directory."""
    return own_profile(files, root) is not BROKER


def find_geometry(
    files: Files, root: Path, asked: dict[str, int | None], default: Geometry
) -> Geometry:
    """Return the sizes of the store at `root`; raises `GeometryError` if the configuration requests other ones.

    Args:
        files: the file system.
        root: the store's folder; it need not exist yet.
        asked: the sizes in the configuration, None for each that it does not set.
        default: the sizes of a new store that the configuration does not set.
    """
    found, source = _existing_sizes(files, root, asked)
    values = {}
    for key, standard in attrs.asdict(default).items():
        wish, have = asked.get(key), found.get(key)
        if wish is not None and have is not None and wish != have:
            raise GeometryError(key, wish, have, source)
        values[key] = have if have is not None else wish if wish is not None else standard
    return Geometry(**values)


def _existing_sizes(
    files: Files, root: Path, asked: dict[str, int | None]
) -> tuple[dict[str, int], str]:
    """Return the sizes of an existing store, and where they come from."""
    noted = root / SIDE_FOLDER / "geometry.json"
    if files.exists(noted):
        return _recorded_sizes(files, root, noted), "penstock/geometry.json"
    found = {}
    size = max(_sizes(files, root / "commitlog"), default=0)
    if size:
        found["segment_bytes"] = size
    size = max(_queue_sizes(files, root / "consumequeue"), default=0)
    if size:
        found["queue_entries"] = size // QUEUE_ENTRY_SIZE
    size = max(_sizes(files, root / "index"), default=0)
    if size:
        found.update(_index_sizes(root / "index", size, asked))
    return found, "read from its files"


def _recorded_sizes(files: Files, root: Path, path: Path) -> dict[str, int]:
    """Return the sizes in `geometry.json`, checked against the files' lengths, since the file has no checksum."""
    try:
        about = json.loads(files.read_whole(path, 1 << 16))
        geometry = Geometry(**{f.name: int(about[f.name]) for f in attrs.fields(Geometry)})
    except _NOT_UNDERSTOOD as error:
        raise CorruptionError(path, 0, "the store's geometry", str(error), _ADVICE) from error
    for what, size, there in (
        ("segments", geometry.segment_bytes, _sizes(files, root / "commitlog")),
        ("queue files", geometry.queue_file_bytes, _queue_sizes(files, root / "consumequeue")),
        ("index files", geometry.index_file_bytes, _sizes(files, root / "index")),
    ):
        if _disagrees(size, there):
            raise CorruptionError(
                path, 0, f"the size of the existing {what}, {max(there)} bytes", f"{size}", _ADVICE
            )
    return attrs.asdict(geometry)


def _disagrees(size: int, there: list[int]) -> bool:
    """Return whether file lengths contradict a recorded size: a single file may have been truncated, but never grew."""
    if not there or size in there:
        return False
    return max(there) > size or (len(there) > 1 and min(there) == max(there))


def _sizes(files: Files, folder: Path) -> list[int]:
    """Return the lengths of the numbered files in a folder."""
    if not files.is_folder(folder):
        return []
    return [
        e.size
        for e in files.entries(folder)
        if e.is_file and e.name.isascii() and e.name.isdigit() and e.size
    ]


def _queue_sizes(files: Files, folder: Path) -> list[int]:
    """Return the lengths of a few queue files, from the first queues that have files."""
    found: list[int] = []
    if files.is_folder(folder):
        for topic in files.entries(folder):
            for queue in files.entries(topic.path) if topic.is_folder else ():
                sizes = _sizes(files, queue.path)
                found += [size for size in sizes if size % QUEUE_ENTRY_SIZE == 0]
                if len(found) > 1:
                    return found
    return found


def _index_sizes(folder: Path, size: int, asked: dict[str, int | None]) -> dict[str, int]:
    """Solve size = header + 4 slots + 20 entries, with one of the two configured or both in the usual ratio."""
    rest = size - INDEX_HEADER_SIZE
    slots, entries = asked.get("index_slots"), asked.get("index_entries")
    if slots is None and entries is None:
        unit = INDEX_SLOT_SIZE + _USUAL_ENTRIES_A_SLOT * INDEX_ENTRY_SIZE
        slots = rest // unit if rest % unit == 0 else None
    if slots is None and entries is not None:
        slots = (rest - entries * INDEX_ENTRY_SIZE) // INDEX_SLOT_SIZE
    if slots is not None:
        entries = (rest - slots * INDEX_SLOT_SIZE) // INDEX_ENTRY_SIZE
        if (
            slots > 0
            and entries > 1
            and slots * INDEX_SLOT_SIZE + entries * INDEX_ENTRY_SIZE == rest
        ):
            return {"index_slots": slots, "index_entries": entries}
    raise ConfigError(
        f"the sizes of the index files in {folder} cannot be derived from their length of {size} bytes; "
        f"set geometry.index_slots to the broker's maxHashSlotNum. Nothing was opened"
    )
