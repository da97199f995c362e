"""Which topics a broker has deleted, as far as the directory tells: `config/topics.json`.

A broker that deletes a topic removes its queues and its entry in that file; the log keeps the records until
retention takes their segments. So records of a topic that the file does not list, and that has no queue, are
those of a deleted topic, but only where

    * the file is there and understood: an embedded store of Penstock has none;
    * a broker wrote the records: Penstock does not list the topics that it makes (see `written_ranges`);
    * the topic is none that brokers keep for themselves, which not every version lists.

Whoever keeps queues looks for surviving entries first (see `contracts.Trust`).
"""

from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from penstock.durability.written_ranges import Ranges, known_ranges
from penstock.files import Files
from penstock.format.java_hash import Int64s
from penstock.format.rocketmq_json import parse_rocketmq_json

_SIZE_MAX = 64 << 20
# What RocketMQ's TopicValidator and MixAll reserve, retry and dead letter queues, and what tools make.
_SYSTEM_PREFIXES = ("rmq_sys_", "%retry%", "%dlq%", "%lmq%", "schedule_topic_", "trans_check_")
_SYSTEM_TOPICS = frozenset(
    {"TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster"}
)
_REPLY_SUFFIX = "_REPLY_TOPIC"


@attrs.frozen
class DeletedTopics:
    """Tells whether records are of a topic that a broker has deleted. Safe from any thread.

    Attributes:
        ranges: which records Penstock wrote.
        listed: the topics in `config/topics.json`, None where that file tells nothing.
    """

    ranges: Ranges
    listed: frozenset[str] | None

    def is_unlisted(self, topic: str) -> bool:
        """Return whether the broker's list of topics is there and lacks this one, which it should have."""
        return self.listed is not None and topic not in self.listed and not is_system(topic)

    def are_ours(self, log_offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which records Penstock wrote, or may have written."""
        return self.ranges.may_be_own(log_offsets)

    def may_have_ours(self, first: int, last: int) -> bool:
        """Return whether Penstock wrote, or may have written, a record between two log offsets, or at one of them."""
        return self.ranges.may_have_own(first, last)

    def is_one_run(self, first: int, last: int) -> bool:
        """Return whether Penstock surely wrote everything from one log offset to another."""
        return self.ranges.is_one_run(first, last)


def read_deleted_topics(files: Files, root: Path, ranges: Ranges | None = None) -> DeletedTopics:
    """Return what a store's folder tells; the ranges are read from it as well if None."""
    return DeletedTopics(ranges or known_ranges(files, root), listed_topics(files, root))


def listed_topics(files: Files, root: Path) -> frozenset[str] | None:
    """Return the topics that the broker's list has; None where there is no list, or none that can be read.

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


def is_system(topic: str) -> bool:
    """Return whether a topic is one that brokers keep for themselves."""
    return (
        topic.lower().startswith(_SYSTEM_PREFIXES)
        or topic in _SYSTEM_TOPICS
        or topic.endswith(_REPLY_SUFFIX)
    )
