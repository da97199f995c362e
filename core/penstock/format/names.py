"""Checks which topics and queue numbers may become folders, and knows the topics without delivered messages.

The check is for messages that a caller puts, and for records of a possibly hostile log when queues are rebuilt.
"""

import operator
from functools import lru_cache

from penstock.errors import LongTopicError, QueueError, TopicError
from penstock.escape import shown

# A topic is a folder's name; that is the limit of every file system in use.
TOPIC_BYTES_MAX = 255
# A record of the first version has one signed byte for its length.
TOPIC_BYTES_V1_MAX = 127
QUEUE_MAX = 65_535
# The folder, within a store, of Penstock's own files beside RocketMQ's.
SIDE_FOLDER = "penstock"
# There while files that say how far the log is processed may be of a longer log.
LOST_END = f"{SIDE_FOLDER}/lost-end"
NAME_DIGITS = 20

# Where RocketMQ keeps delayed messages, prepared ones, the answers to them, and those that nobody finished.
_WAITING = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)  # fmt: skip

# Topics to which a broker accepts no messages of clients; and that of timers, which it leaves open to them.
FORBIDDEN_TOPICS = _WAITING | {"SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}

# Topics reserved by RocketMQ's TopicValidator and MixAll, retry and dead letter queues, and topics of tools.
_SYSTEM_PREFIXES = ("rmq_sys_", "%retry%", "%dlq%", "%lmq%", "schedule_topic_", "trans_check_")
_SYSTEM_TOPICS = frozenset(
    {"TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster"}
)
# Of messages that could not be delivered, and of the replay of dead letters.
_KEPT_GROUPS = frozenset({"penstock-undelivered", "penstock-dlq-replay"})
_REPLY_SUFFIX = "_REPLY_TOPIC"

_DELETE = 0x7F
_FIRST_PRINTABLE = 0x20


def check_topic(topic: object, *, long: bool = True) -> str:
    """Return `topic` if it can be a folder of the store and a field of a record; raises `TopicError` if not.

    `long` says whether records of version 2, which topics of over 127 bytes need, may be written.
    """
    if not isinstance(topic, str):
        raise TopicError(shown(topic), f"it must be a string, not {type(topic).__name__}")
    checked = _check_characters(topic)
    if not long and len(checked.encode()) > TOPIC_BYTES_V1_MAX:
        raise LongTopicError(topic, len(topic.encode()), TOPIC_BYTES_V1_MAX)
    return checked


@lru_cache(4096)
def _check_characters(topic: str) -> str:
    """Return `topic` if it can be the name of a folder; raises `TopicError` if not."""
    if not topic:
        raise TopicError(topic, "it is empty")
    if topic in (".", ".."):
        raise TopicError(topic, "it would name a folder outside of the store's folder for topics")
    for character in topic:
        if character == "/":
            raise TopicError(topic, "it contains '/', and a topic is the name of one folder")
        if ord(character) < _FIRST_PRINTABLE or ord(character) == _DELETE:
            raise TopicError(topic, f"it contains the control character {character!r}")
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        raise TopicError(topic, "it cannot be written as UTF-8") from None
    if size > TOPIC_BYTES_MAX:
        raise TopicError(topic, f"it has {size} UTF-8 bytes, the limit is {TOPIC_BYTES_MAX}")
    return topic


def is_waiting(topic: str) -> bool:
    """Return whether a topic holds messages that wait to be delivered or committed, or never were.

    What reads all topics of a store leaves such a topic out; named, it is read like any other.
    """
    return topic in _WAITING


def is_system(topic: str) -> bool:
    """Return whether a topic is a system topic of brokers: a program did not create it."""
    return (
        topic.lower().startswith(_SYSTEM_PREFIXES)
        or topic in _SYSTEM_TOPICS
        or topic.endswith(_REPLY_SUFFIX)
    )


def is_hidden(topic: str) -> bool:
    """Return whether lists leave a topic out by default: a system topic that holds no messages for programs."""
    return is_system(topic) and not topic.startswith(("%DLQ%", "%LMQ%"))


def is_hidden_progress(group: str, topic: str) -> bool:
    """Return whether lists of groups leave a group's progress in a topic out unless asked for it."""
    return is_hidden(topic) or group.startswith("CID_RMQ_SYS_") or group in _KEPT_GROUPS


def check_queue(queue: object) -> int:
    """Return `queue`, of any integer type, as an `int`; raises `QueueError` if it is not a valid queue number."""
    if type(queue) is int:
        number = queue
    else:
        try:
            number = -1 if isinstance(queue, bool) else int(operator.index(queue))  # type: ignore[arg-type] # checked
        except TypeError:
            number = -1
    if not 0 <= number <= QUEUE_MAX:
        raise QueueError(queue, QUEUE_MAX)
    return number


# A follower asks for the same few topics once a batch.
@lru_cache(maxsize=1024)
def topic_of(raw: bytes) -> str | None:
    """Return a topic read from a record, or None if it cannot be the name of a folder."""
    try:
        return check_topic(raw.decode())
    except (UnicodeDecodeError, TopicError):
        return None


def segment_name(base_offset: int) -> str:
    """Return the file name of the segment that begins at `base_offset`."""
    return f"{base_offset:0{NAME_DIGITS}d}"
