"""Which topic names and queue numbers may become folders of a store.

The check guards both ways in: what a caller puts, and what a hostile log claims when its queues are
rebuilt.
"""

import operator
from functools import lru_cache

from penstock.errors import LongTopicError, QueueError, TopicError

# A topic is a folder's name; that is the limit of every file system in use.
TOPIC_BYTES_MAX = 255
# A record of the first version has one signed byte for its length.
TOPIC_BYTES_V1_MAX = 127
QUEUE_MAX = 65_535
# What Penstock keeps of its own beside RocketMQ's files: a folder of the store.
SIDE_FOLDER = "penstock"
NAME_DIGITS = 20

_DELETE = 0x7F
_FIRST_PRINTABLE = 0x20


def check_topic(topic: object, *, long: bool = True) -> str:
    """Return `topic` if it can be a folder of the store and a field of a record.

    `long` says whether records of the second version, which longer topics need, may be written.
    """
    if not isinstance(topic, str):
        raise TopicError(str(topic), f"it must be a string, not {type(topic).__name__}")
    checked = _checked(topic)
    if not long and len(checked.encode()) > TOPIC_BYTES_V1_MAX:
        raise LongTopicError(topic, len(topic.encode()), TOPIC_BYTES_V1_MAX)
    return checked


@lru_cache(4096)
def _checked(topic: str) -> str:
    if not topic:
        raise TopicError(topic, "it is empty")
    if topic in (".", ".."):
        raise TopicError(topic, "it would name a folder outside its place")
    for character in topic:
        if character == "/":
            raise TopicError(topic, "it holds '/', and a topic is one folder's name")
        if ord(character) < _FIRST_PRINTABLE or ord(character) == _DELETE:
            raise TopicError(topic, f"it holds the control character {character!r}")
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        raise TopicError(topic, "it cannot be written as UTF-8") from None
    if size > TOPIC_BYTES_MAX:
        raise TopicError(topic, f"it has {size} UTF-8 bytes, the limit is {TOPIC_BYTES_MAX}")
    return topic


def check_queue(queue: object) -> int:
    """Return `queue` as an integer if it is a number that a queue may have; any integer type will do."""
    if type(queue) is int:
        number = queue
    else:
        try:
            number = -1 if isinstance(queue, bool) else int(operator.index(queue))  # type: ignore[arg-type] # that is the question
        except TypeError:
            number = -1
    if not 0 <= number <= QUEUE_MAX:
        raise QueueError(queue, QUEUE_MAX)
    return number


def topic_of(raw: bytes) -> str | None:
    """Return a topic read from a record, or None if no folder may be made of it."""
    try:
        return check_topic(raw.decode())
    except (UnicodeDecodeError, TopicError):
        return None


def segment_name(base_offset: int) -> str:
    """Return the file name of the segment that begins at `base_offset`."""
    return f"{base_offset:0{NAME_DIGITS}d}"
