"""Which messages a tag expression lets through."""

from penstock.javatext import java_hash
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
