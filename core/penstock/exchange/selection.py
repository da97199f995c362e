"""Which messages of a store are exported: by topic, queue, time, tag and key."""

from collections.abc import Iterator, Sequence

import attrs

from penstock.contracts import is_light
from penstock.errors import ConfigError
from penstock.format.names import is_waiting
from penstock.message import StoredMessage
from penstock.read.filters import TagFilter, has_key
from penstock.read.spans import Lost, QueueSpan, refuse_lost
from penstock.store.store import Store

# Topics that one line lists.
_LISTED_MAX = 20


@attrs.frozen(kw_only=True)
class Selection:
    """Which messages to export; all by default. All given conditions must hold.

    Attributes:
        topics: the topics; all if empty, except those whose queues only refer to messages of other topics (`%LMQ%`), and
            those whose messages wait to be delivered or committed (`penstock.format.names.is_waiting`).
        queues: the numbers of the queues; all if empty.
        since_ms: stored at or after this time, in Unix milliseconds.
        until_ms: stored at or before this time, in Unix milliseconds.
        tag: a tag expression: `*`, one tag, or multiple tags joined by `||`.
        keys: the message has one of these keys; any if empty.
    """

    topics: Sequence[str] = ()
    queues: Sequence[int] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    tag: str = "*"
    keys: Sequence[str] = ()

    def spans(self, store: Store) -> list[QueueSpan]:
        """Return the ranges of queues to read, as they are now.

        Raises `ConfigError` for a topic or a queue that the store does not have.
        """
        known = store.topics()
        for topic in self.topics:
            if topic not in known:
                listed = ", ".join([*known][:_LISTED_MAX]) or "none"
                more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
                raise ConfigError(
                    f"there is no topic {topic!r}; topics in the store: {listed}{more}"
                )
        bounds = store.lowlevel.bounds(self._has_topic)
        there = {each.queue for each in bounds}
        for queue in self.queues:
            if queue not in there:
                raise ConfigError(f"there is no queue {queue}; queues: {sorted(there)}")
        found = []
        for each in bounds:
            if not self.queues or each.queue in self.queues:
                start, stop = self._range(store, each.topic, each.queue)
                start, stop = max(start, each.min_offset), min(stop, each.max_offset)
                found.append(QueueSpan(each.topic, each.queue, start, max(start, stop)))
        return found

    def _has_topic(self, topic: str) -> bool:
        if self.topics:
            return topic in self.topics
        return not is_light(topic) and not is_waiting(topic)

    def _range(self, store: Store, topic: str, queue: int) -> tuple[int, int]:
        start, stop = 0, 1 << 62
        if self.since_ms is not None:
            start = store.offset_at(topic, queue, self.since_ms / 1000)
        if self.until_ms is not None:
            stop = store.offset_at(topic, queue, (self.until_ms + 1) / 1000)
        return start, stop

    def messages(
        self, store: Store, spans: Sequence[QueueSpan], lost: Lost = refuse_lost
    ) -> Iterator[StoredMessage]:
        """Yield the messages of these ranges that the conditions select, in the order in which they were stored."""
        wanted = TagFilter(self.tag)
        tags = () if wanted.is_any else {word.strip() for word in self.tag.split("||")} - {""}
        for message in store.lowlevel.scan_spans(spans, tags=tags, lost=lost):
            if not self.keys or any(has_key(message, key) for key in self.keys):
                yield message
