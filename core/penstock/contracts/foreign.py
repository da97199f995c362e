"""Data in a broker's directory that Penstock does not understand: a table of its kinds, and how they are recognised.

A RocketMQ broker can keep queues, keys, topics and offsets in forms that Penstock neither reads nor
writes. If a put would have to update such data, writing is refused: opening for writing, repair and
reindex raise `ForeignContentError` and change nothing. Data that no put has to update is ignored.
Reading works for everything that Penstock understands; it raises for the rest, and never shows it as empty.

`KINDS` is the list; docs/broker-directories.md says how each kind is recognised, what can be read beside it, and why
it stops writing or does not.
Kinds that only the content of a derived file reveals are reported by the dispatcher that owns the file
(`Dispatcher.not_understood`).

Links are not followed. Data that cannot be read (permissions, hostile JSON) is reported if its name suffices.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from penstock.files import Files

# The topic prefix of a broker's light message queues: their entries point to records of other topics.
LIGHT_PREFIX = "%LMQ%"
# Files that a broker of 4.x or 5.x leaves in a store, and Penstock does not write.
BROKER_FILES = ("config/topics", "abort.bak")
# The topic that every broker declares in its `config/topics.json` as it starts. Penstock, which writes that file too,
# never does: no message may be put to it.
_TOPIC_OF_BROKERS = b'"SELF_TEST_TOPIC":'
_BATCH = ("queue.type", "BatchCQ")
_JSON_BYTES_MAX = 256 << 20
_NAMED_MAX = 5


@attrs.frozen
class Kind:
    """One row of the table.

    Attributes:
        name: its name in `stats()` and errors.
        what: a description.
        stops_writing: whether opening for writing, repair and reindex are refused.
    """

    name: str
    what: str
    stops_writing: bool = attrs.field(kw_only=True)


BATCH_QUEUES = Kind("batch-queues", "topics with batch queues (BatchCQ)", stops_writing=True)
LIGHT_QUEUES = Kind("light-queues", "light message queues (`%LMQ%`)", stops_writing=True)
ROCKSDB_QUEUES = Kind("rocksdb-queues", "consume queues in RocksDB", stops_writing=True)
ROCKSDB_CONFIG = Kind("rocksdb-config", "topics, groups or offsets in RocksDB", stops_writing=True)
ROCKSDB_STORE = Kind(
    "rocksdb-store", "index, timers or transactions in RocksDB", stops_writing=True
)
TAG_KEYS = Kind(
    "tag-keys", "tags in the key index, as RocketMQ writes them since 5.4", stops_writing=True
)
LMQ_OFFSETS = Kind("lmq-offsets", "offsets of a broker with `enableLmq`", stops_writing=True)
DLEDGER = Kind("dledger-log", "a log of DLedger", stops_writing=True)
COMPACTION = Kind("compaction-topics", "compacted topics", stops_writing=True)
POP_STATE = Kind("pop-state", "state of POP consumers", stops_writing=False)
BROKER_CONFIG = Kind("broker-config", "the broker's own configuration", stops_writing=False)
UNKNOWN = Kind("unknown", "files that belong to no store", stops_writing=False)
KINDS = (
    BATCH_QUEUES, LIGHT_QUEUES, ROCKSDB_QUEUES, ROCKSDB_CONFIG, ROCKSDB_STORE, TAG_KEYS, LMQ_OFFSETS, DLEDGER,
    COMPACTION, POP_STATE, BROKER_CONFIG, UNKNOWN,
)  # fmt: skip


@attrs.frozen
class Foreign:
    """Data in a directory that Penstock does not understand: its kind, where it is, and the names in it."""

    kind: Kind
    path: Path
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A short description; names are escaped, since they may come from anybody."""
        named = ", ".join(map(repr, self.names[:_NAMED_MAX]))
        more = len(self.names) - _NAMED_MAX
        named += f" and {more} more" if more > 0 else ""
        return f"{self.kind.what}{': ' if named else ''}{named} (in {str(self.path)!r})"


def batch_topics(files: Files, root: Path) -> set[str]:
    """Return the topics that have batch queues."""
    declared = topics_with(files, root, *_BATCH)
    return declared | set(filled(files, root / "batchconsumequeue"))


def is_light(topic: str) -> bool:
    """Return whether a topic's queues may be light ones."""
    return topic.startswith(LIGHT_PREFIX)


def is_database(files: Files, folder: Path) -> bool:
    """Return whether a folder is one of RocksDB's."""
    return files.is_folder(folder) and files.exists(folder / "CURRENT")


def has_broker_files(files: Files, root: Path) -> bool:
    """Return whether a broker has been in this directory."""
    return any(files.exists(root / name) for name in BROKER_FILES) or any(
        _has_brokers_topic(files, root / "config" / name)
        for name in ("topics.json", "topics.json.bak")
    )


def _has_brokers_topic(files: Files, path: Path) -> bool:
    """Return whether a file of topics exists and a broker wrote it; one that cannot be read counts as a broker's."""
    if not files.exists(path):
        return False
    try:
        return _TOPIC_OF_BROKERS in files.read_whole(path, _JSON_BYTES_MAX)
    except OSError:
        return True


def stopping(found: Iterable[Foreign]) -> tuple[Foreign, ...]:
    """Return those of the found kinds that prevent writing."""
    return tuple(each for each in found if each.kind.stops_writing)


def names_in(files: Files, folder: Path) -> list[str]:
    """Return the names in a folder; empty if there is no such folder."""
    return [entry.name for entry in files.entries(folder)] if files.is_folder(folder) else []


def folders_in(files: Files, folder: Path) -> list[str]:
    """Return the names of the folders in a folder; empty if there is no such folder."""
    return files.folders(str(folder)) if files.is_folder(folder) else []


def filled(files: Files, folder: Path, wanted: Callable[[str], bool] = bool) -> list[str]:
    """Return the topics below a folder that have a queue with files; a deleted topic may leave an empty folder."""
    return [
        name for name in folders_in(files, folder)
        if wanted(name) and any(
            files.entries(folder / name / queue) for queue in folders_in(files, folder / name)
        )
    ]  # fmt: skip


def topics_with(files: Files, root: Path, attribute: str, value: str) -> set[str]:
    """Return the topics that a broker declares with an attribute; from the backup if the file is not valid JSON."""
    for name in ("topics.json", "topics.json.bak"):
        try:
            about = json.loads(files.read_whole(root / "config" / name, _JSON_BYTES_MAX))
            table = about["topicConfigTable"]
            return {
                str(topic) for topic, facts in table.items()
                if isinstance(facts, dict) and _has(facts.get("attributes"), attribute, value)
            }  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return set()


def _has(attributes: object, name: str, value: str) -> bool:
    return isinstance(attributes, dict) and attributes.get(name) == value
