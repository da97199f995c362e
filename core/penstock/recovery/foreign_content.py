"""Finds the files of a store that Penstock does not understand, and refuses writes that would make them inconsistent."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher
from penstock.contracts.foreign import (
    BATCH_QUEUES,
    BROKER_CONFIG,
    COMPACTION,
    LIGHT_QUEUES,
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
from penstock.errors import ForeignContentError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.log.resync import RecoveredLog
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.store_layout import was_made_here

logger = get_logger(__name__)

_UNDERSTOOD = frozenset(
    [
        "commitlog", "consumequeue", "consumequeue_ext", "index", "lock", "abort", "abort.bak",
        "checkpoint", "penstock", "config", "batchconsumequeue", "compaction", "rocksdbstore",
        "timerwheel", "timerlog",
    ]
)  # fmt: skip
_POP = ("kvStore",)
_COMPACTION = ("cleanup.policy", "COMPACTION")
_CONFIG_READ = frozenset(
    [
        "topics.json",
        "topics.json.bak",
        "subscriptionGroup.json",
        "subscriptionGroup.json.bak",
        "consumerOffset.json",
        "consumerOffset.json.bak",
        "delayOffset.json",
        "delayOffset.json.bak",
        "timercheck",
    ]
)


def find_foreign(files: Files, root: Path, *, is_made_here: bool = False) -> list[Foreign]:
    """Return the files of a store that are not understood, in the order of `contracts.foreign.KINDS`; changes nothing.

    Args:
        files: the file system.
        root: the store's folder.
        is_made_here: Penstock created the store; then a topic counts as light queues only if a broker has
            used the store.
    """
    if not files.is_folder(root):
        return []
    found = list(_queues(files, root, is_made_here=is_made_here))
    found += _databases(files, root)
    found += _compaction(files, root)
    others = sorted(set(names_in(files, root)) - _UNDERSTOOD)
    found += [Foreign(POP_STATE, root / name) for name in others if name in _POP]
    own = sorted(set(names_in(files, root / "config")) - _CONFIG_READ)
    if own:
        found.append(Foreign(BROKER_CONFIG, root / "config", tuple(own)))
    strange = [n for n in others if n not in _POP and not n.startswith("consumequeue_")]
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
