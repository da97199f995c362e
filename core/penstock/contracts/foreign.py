"""Data in a broker's directory that Penstock does not understand: a table of its kinds, and how they are recognised.

A RocketMQ broker can keep queues, keys, topics and offsets in forms that Penstock neither reads nor
writes. If a put would have to update such data, writing is refused: opening for writing, repair and
reindex raise `ForeignContentError` and change nothing. Data that no put has to update is ignored.
Reading works for everything that Penstock understands; it raises for the rest, and never shows it as empty.

`KINDS` is the list with the reasons; docs/broker-directories.md shows the same, and a test compares them.
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


@attrs.frozen(kw_only=True)
class Kind:
    """One row of the table.

    Attributes:
        name: its name in `stats()` and errors.
        what: a description.
        signs: how it is recognised.
        reading: what can be read.
        stops_writing: whether opening for writing, repair and reindex are refused.
        why: the reason why they are refused, or are not.
    """

    name: str
    what: str
    signs: str
    reading: str
    stops_writing: bool
    why: str


BATCH_QUEUES = Kind(
    name="batch-queues",
    what="topics with batch queues (BatchCQ)",
    signs="`queue.type` is `BatchCQ` in `config/topics.json`, or a queue below `batchconsumequeue/`",
    reading="all other topics are read; reading such a topic raises",
    stops_writing=True,
    why="a queue folder made for such a topic below `consumequeue/` keeps the broker from starting",
)
LIGHT_QUEUES = Kind(
    name="light-queues",
    what="light message queues (`%LMQ%`)",
    signs="a queue below `consumequeue/` of a topic whose name begins with `%LMQ%`",
    reading="they are read like any other queue",
    stops_writing=True,
    why="a put is not added to the light queues that it names, and a rebuild of the queues would lose the light ones",
)
ROCKSDB_QUEUES = Kind(
    name="rocksdb-queues",
    what="consume queues in RocksDB",
    signs="a file `CURRENT` in `consumequeue/`, or a folder `consumequeue_rocksdb/`",
    reading="by key, message id and log offset; reads by queue raise if the queues are in RocksDB only",
    stops_writing=True,
    why="the broker would not see messages put here",
)
ROCKSDB_CONFIG = Kind(
    name="rocksdb-config",
    what="topics, groups or offsets in RocksDB",
    signs="a folder below `config/` that has a file `CURRENT`",
    reading="everything except committed offsets, which raise",
    stops_writing=True,
    why="it is not known which topics have other kinds of queues, and the broker would not see offsets committed here",
)
ROCKSDB_STORE = Kind(
    name="rocksdb-store",
    what="index, timers or transactions in RocksDB",
    signs="a file in `rocksdbstore/` whose name ends in `.sst`, or a non-empty one whose name ends in `.log`",
    reading="everything; finding by key looks into the files of `index/` only",
    stops_writing=True,
    why="messages put here would be missing from that database",
)
TAG_KEYS = Kind(
    name="tag-keys",
    what="tags in the key index, as RocketMQ writes them since 5.4",
    signs="a folder `rocksdbstore/`, or the hash of `topic#T#tag` among the newest entries of `index/`",
    reading="everything",
    stops_writing=True,
    why="the tags of messages put here would be missing from the index",
)
COMPACTION = Kind(
    name="compaction-topics",
    what="compacted topics",
    signs="`cleanup.policy` is `COMPACTION` in `config/topics.json`, or a queue below `compaction/`",
    reading="everything that the log has; the broker shows the newest message of each key",
    stops_writing=True,
    why="messages put here would be missing from the compacted copy, which the broker reads",
)
POP_STATE = Kind(
    name="pop-state",
    what="state of POP consumers",
    signs="`kvStore/`",
    reading="everything",
    stops_writing=False,
    why="it concerns messages that consumers have received; a put does not change it",
)
BROKER_CONFIG = Kind(
    name="broker-config",
    what="the broker's own configuration",
    signs="files in `config/` other than `topics.json`, `subscriptionGroup.json`, `consumerOffset.json`, "
    "`delayOffset.json` and `timercheck`",
    reading="everything",
    stops_writing=False,
    why="no put changes it",
)
UNKNOWN = Kind(
    name="unknown",
    what="files that belong to no store",
    signs="any other name in the store's folder",
    reading="everything",
    stops_writing=False,
    why="nothing in the store refers to them",
)
KINDS = (
    BATCH_QUEUES, LIGHT_QUEUES, ROCKSDB_QUEUES, ROCKSDB_CONFIG, ROCKSDB_STORE, TAG_KEYS, COMPACTION,
    POP_STATE, BROKER_CONFIG, UNKNOWN,
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
