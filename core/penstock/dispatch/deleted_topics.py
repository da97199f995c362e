"""Determines which topics a broker has deleted, from the directory's `config/topics.json`.

A broker that deletes a topic removes its queues and its entry in that file; the log keeps the records until
retention deletes their segments. So if the file does not list a topic and the topic has no queue, its records are
those of a deleted topic, but only if

    * the file exists and is understood;
    * a broker wrote the records, since Penstock lists a topic after its first message (see `written_ranges`); or the topic was
      listed when Penstock closed the store last, and another program has had it since;
    * the topic is not a system topic of brokers, since not every version lists those.

A queue index searches for surviving entries first (see `contracts.Trust`).

Topics that Penstock itself removed are recorded, and need no such conclusions: see `removed_topics`.
"""

from collections.abc import Mapping
from pathlib import Path

import attrs

from penstock.contracts import History
from penstock.durability.progress import Progress
from penstock.durability.removed_topics import RemovedTopicsFile
from penstock.durability.side_folder import SideFolder, penstock_wrote_last
from penstock.durability.written_ranges import Ranges, known_ranges
from penstock.files import Files
from penstock.format.arrays import Bools, Int64s
from penstock.format.names import is_system
from penstock.format.rocketmq_json import parse_rocketmq_json

_SIZE_MAX = 64 << 20


@attrs.frozen
class DeletedTopics(History):
    """Determines whether records belong to a topic that a broker has deleted. Safe from any thread.

    Attributes:
        ranges: which records Penstock wrote.
        removed: removed topics, each with the log offset before which its records need no queue entry.
        listed: the topics in `config/topics.json`, None if there is no such file or it cannot be read.
    """

    ranges: Ranges
    listed: frozenset[str] | None
    removed: Mapping[str, int] = attrs.Factory(dict)

    def is_unlisted(self, topic: str) -> bool:
        """See `contracts.History`."""
        return self.listed is not None and topic not in self.listed and not is_system(topic)

    def are_ours(self, log_offsets: Int64s) -> Bools:
        """See `contracts.History`."""
        return self.ranges.may_be_own(log_offsets)

    def may_have_ours(self, first: int, last: int) -> bool:
        """See `contracts.History`."""
        return self.ranges.may_have_own(first, last)

    def is_one_run(self, first: int, last: int) -> bool:
        """See `contracts.History`."""
        return self.ranges.is_one_run(first, last)


def read_deleted_topics(files: Files, root: Path, ranges: Ranges | None = None) -> DeletedTopics:
    """Return the deleted topics of a store; reads the ranges from its folder, too, if they are None."""
    removed = {**deleted_since_close(files, root), **RemovedTopicsFile(files, root).read().before}
    return DeletedTopics(ranges or known_ranges(files, root), listed_topics(files, root), removed)


def deleted_since_close(files: Files, root: Path) -> dict[str, int]:
    """Return the topics that another program has deleted since Penstock closed the store, each with the log's end at that close."""
    clean, listed = SideFolder(files, root).read_clean(), listed_topics(files, root)
    if clean is None or listed is None:
        return {}
    if penstock_wrote_last(files, root, Progress(files, root).read().lock_mtime_ns):
        return {}
    gone = (topic for topic in clean.topics if topic not in listed and not is_system(topic))
    return dict.fromkeys(gone, clean.log_end)


def listed_topics(files: Files, root: Path) -> frozenset[str] | None:
    """Return the topics in the broker's list; None if there is no list, or it cannot be read.

    The `.bak` beside it is older, so it may lack a topic that is in use: it is not read.
    """
    path = root / "config" / "topics.json"
    if not files.exists(path):
        return None
    try:
        table = parse_rocketmq_json(files.read_whole(path, _SIZE_MAX).decode("utf-8-sig"))
    except (ValueError, OSError):
        return None
    topics = table.get("topicConfigTable")
    return frozenset(topics) if isinstance(topics, dict) else None
