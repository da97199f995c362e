"""Which messages a tag expression or a key means, and what an offset beyond a queue is answered."""

import numpy as np

from penstock.columns import Bools
from penstock.javatext import Int64s, java_hash
from penstock.message import ReadStatus
from penstock.properties import KEYS, UNIQ_KEY
from penstock.stored import StoredMessage

_INT32_MIN = -(1 << 31)


class TagFilter:
    """RocketMQ's tag expression: `*`, or tags joined by `||`. Hash first, then text."""

    def __init__(self, expression: str) -> None:
        words = [word.strip() for word in expression.split("||")]
        self._tags = frozenset(word for word in words if word)
        self._hashes = frozenset(java_hash(tag) for tag in self._tags)
        self._all = not self._tags or "*" in self._tags

    def may_match(self, tag_code: int) -> bool:
        """Look at a queue entry's code; one below all hashes is an address and says nothing."""
        return self._all or tag_code < _INT32_MIN or tag_code in self._hashes

    def matches(self, message: StoredMessage) -> bool:
        """Look at the text: hashes collide."""
        return self._all or message.tag in self._tags


def has_key(message: StoredMessage, key: str) -> bool:
    """Say whether `key` is among the message's keys, as a word or as a phrase, or is its UNIQ_KEY."""
    properties = message.all_properties
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
