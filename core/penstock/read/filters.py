"""Which messages a tag expression or a key means, and what an offset beyond a queue is answered."""

from collections.abc import Iterable

import numpy as np

from penstock.format.columns import Bools, RecordColumns
from penstock.format.java_hash import Int64s, java_hash
from penstock.format.properties import KEYS, TAGS, UNIQ_KEY
from penstock.message import ReadStatus, StoredMessage

_INT32_MIN = -(1 << 31)


class TagFilter:
    """RocketMQ's tag expression: `*`, or tags joined by `||`. Hash first, then text."""

    def __init__(self, expression: str) -> None:
        words = [word.strip() for word in expression.split("||")]
        self._tags = frozenset(word for word in words if word)
        self._hashes = np.array(sorted({java_hash(tag) for tag in self._tags}), np.int64)
        # Whether every message is wanted.
        self.is_any = not self._tags or "*" in self._tags

    def may_match(self, tag_codes: Int64s) -> Bools:
        """Look at queue entries' codes; one below all hashes is an address and says nothing."""
        if self.is_any:
            return np.ones(len(tag_codes), np.bool_)
        return (tag_codes < _INT32_MIN) | np.isin(tag_codes, self._hashes)

    def matches(self, message: StoredMessage) -> bool:
        """Look at the text: hashes collide."""
        return self.is_any or message.tag in self._tags


class RowFilter:
    """Which records are wanted by their tags and keys, many at a time: hash first, then text.

    Args:
        tags: the record's tag must be one of these; any if there are none.
        keys: the record must have one of these, as `has_key` says; any if there are none.
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
        """Look at queue entries' codes; one below all hashes is an address and says nothing."""
        if not self._tags:
            return np.ones(len(tag_codes), np.bool_)
        return (tag_codes < _INT32_MIN) | np.isin(tag_codes, self._hashes)

    def matches(self, records: RecordColumns) -> Bools:
        """Look at the texts: hashes collide."""
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
        """Say whether any of the keys is in a text of several."""
        return not self._words.isdisjoint(filter(None, text.split(b" "))) or any(
            phrase in b" %s " % text for phrase in self._phrases
        )


def has_key(message: StoredMessage, key: str) -> bool:
    """Say whether `key` is among the message's keys, as a word or as a phrase, or is its UNIQ_KEY."""
    properties = message.all_properties
    if not key:
        return False
    return f" {key} " in f" {properties.get(KEYS, '')} " or properties.get(UNIQ_KEY) == key


def out_of_bounds(offset: int, low: int, high: int) -> tuple[ReadStatus, int] | None:
    """Return RocketMQ's answer for an offset with nothing to read (spec section 10.2)."""
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
    """Return which entries do not lie between those around them; the first and the last may not."""
    doubted = np.ones(len(log_offsets), np.bool_)
    ascends = np.diff(log_offsets) > 0
    doubted[1:-1] = ~(ascends[1:] & ascends[:-1])
    return doubted
