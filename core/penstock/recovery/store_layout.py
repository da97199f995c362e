"""Determines whether a folder is a store, its file sizes, and what in it Penstock does not understand.

A store created by Penstock has its geometry in `penstock/geometry.json`. For a store created by Java,
the sizes are derived from its files. The length of an index file is the sum of two sizes, so RocketMQ's usual
ratio (four entries per slot) is assumed unless the configuration gives one of them.

The same file contains the store's profile (see `config.model`). Writes that break other programs' files are refused.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from penstock.config.model import BROKER, EMBEDDED, KNOWN, PROFILES, Profile
from penstock.contracts import Dispatcher
from penstock.contracts.base import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    QUEUE_ENTRY_SIZE,
    SEGMENT_UNIT,
    Geometry,
)
from penstock.contracts.foreign import (
    BATCH_QUEUES,
    BROKER_CONFIG,
    COMPACTION,
    DLEDGER,
    LIGHT_QUEUES,
    LMQ_OFFSETS,
    POP_STATE,
    ROCKSDB_CONFIG,
    ROCKSDB_QUEUES,
    ROCKSDB_STORE,
    TAG_KEYS,
    UNKNOWN,
    Foreign,
    batch_topics,
    filled,
    folders_in,
    has_broker_files,
    is_database,
    is_light,
    names_in,
    stopping,
    topics_with,
)
from penstock.errors import (
    ConfigError,
    CorruptionError,
    ForeignContentError,
    GeometryError,
    NotAStoreError,
    StrayFileError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER
from penstock.log.resync import RecoveredLog
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)


_OWN_NAMES = frozenset(
    [
        "commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "lock", "abort",
        "abort.bak",
        "checkpoint", "penstock", "timerwheel", "timerlog", "compaction",
    ]
)  # fmt: skip
# Names that, if they exist, must be folders or regular files; those after them are checked only for writing.
_FOLDERS = (
    "commitlog",
    "consumequeue",
    "consumequeue_ext",
    "index",
    "config",
    "penstock",
    "timerlog",
    "compaction",
)
_FILES = ("checkpoint", "abort", "lock", "penstock/progress", "timerwheel", "config/timercheck")
_WRITTEN_FOLDERS = ("penstock/saved", "penstock/repair", "penstock/requests")
_WHOLE = ("checkpoint", "abort", "penstock/progress", "penstock/clean", "penstock/ranges", "penstock/holder",
          "penstock/replica", "penstock/geometry.json", "penstock/repair/journal", "penstock/repair/ready")  # fmt: skip
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
        raise NotAStoreError(root, "it is not a folder, or a symbolic link that leads to no folder")
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
        return KNOWN[json.loads(files.read_state(path, 1 << 16))["profile"]]
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
    size = max(_segment_sizes(files, root) or _sizes(files, root / "commitlog"), default=0)
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
        about = json.loads(files.read_state(path, 1 << 16))
        geometry = Geometry(**{f.name: int(about[f.name]) for f in attrs.fields(Geometry)})
    except _NOT_UNDERSTOOD as error:
        raise CorruptionError(path, 0, "the store's geometry", str(error), _ADVICE) from error
    for what, size, there in (
        ("segments", geometry.segment_bytes, _segment_sizes(files, root)),
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


def _segment_sizes(files: Files, root: Path) -> list[int]:
    """Return the lengths of the segment files, without those that no segment can have."""
    return [s for s in _sizes(files, root / "commitlog") if s % SEGMENT_UNIT == 0]


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


_UNDERSTOOD = _OWN_NAMES | {"rocksdbstore"}
_POP = ("kvStore",)
_DLEDGER = "dledger-"
_LMQ_OFFSETS = ("lmqConsumerOffset.json", "lmqConsumerOffset.json.bak")
_COMPACTION = ("cleanup.policy", "COMPACTION")
_CONFIG_READ = frozenset(
    [
        "topics.json", "topics.json.bak", "subscriptionGroup.json", "subscriptionGroup.json.bak", "consumerOffset.json",
        "consumerOffset.json.bak", "delayOffset.json", "delayOffset.json.bak", "timercheck",
    ]
)  # fmt: skip


def find_foreign(files: Files, root: Path, *, is_made_here: bool = False) -> list[Foreign]:
    """Return the files of a store that are not understood, in the order of `contracts.foreign.KINDS`; changes nothing.

    Args:
        files: the file system.
        root: the store's folder.
        is_made_here: Penstock created the store; then light queues count only if a broker has used the store.
    """
    if not files.is_folder(root):
        return []
    found = list(_queues(files, root, is_made_here=is_made_here))
    found += _databases(files, root)
    config = set(names_in(files, root / "config")) - _CONFIG_READ
    light_offsets = [name for name in _LMQ_OFFSETS if name in config]
    if light_offsets:
        found.append(Foreign(LMQ_OFFSETS, root / "config", tuple(light_offsets)))
    others = sorted(set(names_in(files, root)) - _UNDERSTOOD)
    found += [Foreign(DLEDGER, root / name) for name in others if name.startswith(_DLEDGER)]
    found += _compaction(files, root)
    found += [Foreign(POP_STATE, root / name) for name in others if name in _POP]
    own = sorted(config.difference(_LMQ_OFFSETS))
    if own:
        found.append(Foreign(BROKER_CONFIG, root / "config", tuple(own)))
    strange = [n for n in others if n not in _POP and not n.startswith(("consumequeue_", _DLEDGER))]
    if strange:
        found.append(Foreign(UNKNOWN, root, tuple(strange)))
    return found


def _queues(files: Files, root: Path, *, is_made_here: bool) -> Iterator[Foreign]:
    batch = batch_topics(files, root)
    if batch:
        yield Foreign(BATCH_QUEUES, root / "batchconsumequeue", tuple(sorted(batch)))
    light = filled(files, root / "consumequeue", is_light)
    if light and (not is_made_here or has_broker_files(files, root)):
        yield Foreign(LIGHT_QUEUES, root / "consumequeue", tuple(sorted(light)))


def _databases(files: Files, root: Path) -> Iterator[Foreign]:
    """Yield the RocksDB databases in a store's folder."""
    for name in sorted(names_in(files, root)):
        if name.startswith("consumequeue") and is_database(files, root / name):
            yield Foreign(ROCKSDB_QUEUES, root / name)
    config = root / "config"
    inside = [n for n in folders_in(files, config) if _has_database(files, config / n)]
    if inside:
        yield Foreign(ROCKSDB_CONFIG, config, tuple(sorted(inside)))
    store = root / "rocksdbstore"
    if files.is_folder(store):
        entries = [e for e in files.entries(store) if e.is_file]
        if any(e.path.suffix == ".sst" or (e.path.suffix == ".log" and e.size) for e in entries):
            yield Foreign(ROCKSDB_STORE, store)
        yield Foreign(TAG_KEYS, root / "index")


def _compaction(files: Files, root: Path) -> Iterator[Foreign]:
    declared = topics_with(files, root, *_COMPACTION)
    for name in ("compactionLog", "compactionCq"):
        declared |= set(filled(files, root / "compaction" / name))
    if declared:
        yield Foreign(COMPACTION, root / "compaction", tuple(sorted(declared)))


def _has_database(files: Files, folder: Path) -> bool:
    """Return whether a folder is a RocksDB database, or contains one."""
    return is_database(files, folder) or any(
        is_database(files, folder / name) for name in folders_in(files, folder)
    )


def foreign_in(
    files: Files, root: Path, log: SegmentedLog, dispatchers: Iterable[Dispatcher]
) -> tuple[Foreign, ...]:
    """Return the content that is not understood; `dispatchers` are opened read-only."""
    found = find_foreign(files, root, is_made_here=was_made_here(files, root))
    view = RecoveredLog(log, log.committed_offset)
    for dispatcher in dispatchers:
        seen = {each.kind.name for each in found}
        found += [each for each in dispatcher.not_understood(view) if each.kind.name not in seen]
    return tuple(found)


def check_foreign(root: Path, found: Sequence[Foreign], what: str) -> None:
    """Raise `ForeignContentError` if anything found forbids writing; log the rest.

    Args:
        root: the store's folder.
        found: the content that is not understood.
        what: the consequence, for example "opening for writing is refused".
    """
    refused = stopping(found)
    if refused:
        listed = [(each.kind.name, each.text) for each in refused]
        raise ForeignContentError(root, what, listed)
    if found:
        texts = "; ".join(each.text for each in found)
        logger.info("%s: not understood, and not changed: %s", root, texts)
