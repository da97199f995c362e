"""Arguments of a read: filters by tag expression and by key, and the read status for an offset outside of a queue.

Each check returns the checked value; see `format.arguments`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from penstock.errors import ArgumentError, ArgumentTypeError, UnknownTopicError
from penstock.escape import near
from penstock.format import arguments
from penstock.format.arrays import Bools, Int64s, np
from penstock.format.columns import RecordColumns
from penstock.format.hashes import java_hash
from penstock.format.names import check_queue, check_topic
from penstock.format.properties import KEYS, TAGS, TRIMMED, UNIQ_KEY
from penstock.message import ReadStatus, StoredMessage


def _may_be_one(tag_codes: Int64s, hashes: Int64s) -> Bools:
    """Return which codes may be those of tags with these hashes.

    A code that is no hash may be: an address is below all hashes, and the time of a delayed message, which is the code
    in SCHEDULE_TOPIC_XXXX, is above them.
    """
    is_hash = tag_codes == tag_codes.astype(np.int32)
    found: Bools = np.isin(tag_codes, hashes) | ~is_hash
    return found


class TagFilter:
    """RocketMQ's tag expression: `*`, or tags joined by `||`. Compares first the hash, then the text."""

    def __init__(self, expression: str) -> None:
        words = {word.strip(TRIMMED) for word in expression.split("||")} - {""}
        # Empty if every message is wanted.
        self.tags = frozenset() if "*" in words else frozenset(words)
        self.is_any = not self.tags
        self._hashes = np.array(sorted({java_hash(tag) for tag in self.tags}), np.int64)

    def may_match(self, tag_codes: Int64s) -> Bools:
        """Return which queue entries may match by their codes."""
        if self.is_any:
            return np.ones(len(tag_codes), np.bool_)
        return _may_be_one(tag_codes, self._hashes)

    def matches(self, message: StoredMessage) -> bool:
        """Return whether a message matches; compares the text, since hashes collide."""
        return self.is_any or message.tag in self.tags


class RowFilter:
    """Filters records by tags and keys, many at a time: compares first the hash, then the text.

    Args:
        tags: the record's tag must be one of these; any tag if empty.
        keys: the record must have one of these, as defined by `has_key`; any key if empty.
    """

    def __init__(self, tags: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
        self._tags = frozenset(tag.encode() for tag in tags)
        hashes = {java_hash(tag.decode()) for tag in self._tags}
        self._hashes = np.array(sorted(hashes), np.int64)
        self._words = frozenset(key.encode() for key in keys if " " not in key)
        self._phrases = [b" %s " % key.encode() for key in keys if " " in key]

    @property
    def is_any(self) -> bool:
        """Whether every record is wanted."""
        return not (self._tags or self._words or self._phrases)

    def may_match(self, tag_codes: Int64s) -> Bools:
        """Return which queue entries may match by their codes."""
        if not self._tags:
            return np.ones(len(tag_codes), np.bool_)
        return _may_be_one(tag_codes, self._hashes)

    def matches(self, records: RecordColumns) -> Bools:
        """Return which records match; compares the texts, since hashes collide."""
        right = np.ones(len(records), np.bool_)
        if self._tags:
            tags = records.properties.named(TAGS.encode())
            right[:] = False
            right[tags.rows] = [text in self._tags for text in tags.texts()]
        if self._words or self._phrases:
            right &= self._has_key(records)
        return right

    def _has_key(self, records: RecordColumns) -> Bools:
        found = np.zeros(len(records), np.bool_)
        several, unique = (records.properties.named(n.encode()) for n in (KEYS, UNIQ_KEY))
        found[several.rows] = [self._is_among(text) for text in several.texts()]
        is_one = [text in self._words or b" %s " % text in self._phrases for text in unique.texts()]
        found[unique.rows] |= np.array(is_one, np.bool_)
        return found

    def _is_among(self, text: bytes) -> bool:
        """Return whether any of the keys is in a text of multiple keys."""
        return not self._words.isdisjoint(filter(None, text.split(b" "))) or any(
            phrase in b" %s " % text for phrase in self._phrases
        )


def has_key(message: StoredMessage, key: str) -> bool:
    """Return whether `key` is one of the message's keys, a phrase of consecutive keys, or its UNIQ_KEY."""
    properties = message.all_properties
    if not key:
        return False
    return f" {key} " in f" {properties.get(KEYS, '')} " or properties.get(UNIQ_KEY) == key


def out_of_bounds(offset: int, low: int, high: int) -> tuple[ReadStatus, int] | None:
    """Return RocketMQ's status and next offset for an offset without a message, else None (spec section 10.2)."""
    if high == 0:
        return ReadStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return ReadStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return ReadStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return ReadStatus.OFFSET_OVERFLOW_BADLY, high
    return None


def out_of_line(log_offsets: Int64s) -> Bools:
    """Return which entries are not between their neighbours in log order; always includes the first and the last."""
    doubted = np.ones(len(log_offsets), np.bool_)
    ascends = np.diff(log_offsets) > 0
    doubted[1:-1] = ~(ascends[1:] & ascends[:-1])
    return doubted


# The offset of the only queue, or a mapping by topic and queue.
Offsets = int | Mapping[tuple[str, int], int]
Place = tuple[str, int]


def checked_topics(call: str, topics: object) -> list[str]:
    """Return the names of topics, each once; a single one may be given as it is."""
    if isinstance(topics, str):
        return [check_topic(topics)]
    if isinstance(topics, bytes | bytearray) or not isinstance(topics, Iterable):
        raise ArgumentTypeError(call, "topics", topics, "a topic, or several of them in a list")
    return list(dict.fromkeys(map(check_topic, topics)))


def unknown_topic(topic: str, known: Iterable[str]) -> UnknownTopicError:
    """Return the error for a topic that a store does not have, with the nearest one that it has."""
    return UnknownTopicError(
        topic,
        near(topic, known) or "; Store.topics() names those that the store has",
    )


def checked_tags(call: str, tag: object) -> TagFilter:
    """Return the filter of a tag expression."""
    return TagFilter(arguments.text(call, "tag", tag, "a string such as '*', 'a' or 'a || b'"))


def checked_columns(call: str, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of columns; None for all of them."""
    return None if columns is None else arguments.texts(call, "columns", columns)


def checked_offsets(call: str, name: str, offsets: object) -> Offsets | None:
    """Return the offset of one queue, or a mapping of (topic, queue) to offset, checked."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        expected = "a queue offset, or a mapping of (topic, queue) to queue offset"
        if isinstance(offsets, datetime):
            raise ArgumentTypeError(
                call, name, offsets, f"{expected}; a time is given as since or until"
            )
        if isinstance(offsets, str | bytes | list | tuple | float):
            raise ArgumentTypeError(call, name, offsets, expected)
        return arguments.whole(call, name, offsets, arguments.INT64_MIN)
    checked: dict[tuple[str, int], int] = {}
    for place, offset in offsets.items():
        if not isinstance(place, tuple) or len(place) != 2:  # noqa: PLR2004 - topic and queue
            raise ArgumentTypeError(call, f"{name} key", place, "a tuple of topic and queue")
        key = check_topic(place[0]), check_queue(place[1])
        checked[key] = arguments.whole(call, f"{name}[{place!r}]", offset, arguments.INT64_MIN)
    return checked


def by_queue(
    call: str, name: str, offsets: Offsets | None, topics: Sequence[str], places: Sequence[Place]
) -> Mapping[Place, int]:
    """Return queue offsets by topic and queue; raises `ArgumentError` if one is ambiguous, or its topic is not read."""
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        if len(places) > 1:
            expected = f"a mapping of (topic, queue) to offset, since it could mean any of {len(places)} queues"
            raise ArgumentError(call, name, offsets, expected)
        return dict.fromkeys(places, offsets)
    for topic, queue in offsets:
        if topic not in topics:
            expected = f"of the topics that are read, and {topic!r} is not one of them"
            raise ArgumentError(call, f"{name} key", (topic, queue), expected)
    return offsets
