"""Which retries of a group are in the log from a log offset on: so that a kill between a retry and its mark makes no second one."""

from collections.abc import Callable

from penstock import StoredMessage
from penstock.contracts import OpenStore

_SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_AT_ONCE = 32


class RetriesMade:
    """The retries and dead letters that a group got since a log offset. Not thread-safe."""

    def __init__(
        self, store: OpenStore, group: str, log_offset: int,
        origin: Callable[[StoredMessage], tuple[str, int]],
    ) -> None:  # fmt: skip
        """Read them; `origin` returns first id and number of tries of a copy."""
        self._store = store
        self._log_offset = log_offset
        self._targets = f"%RETRY%{group}", f"%DLQ%{group}"
        known = store.topics()
        self._found: set[tuple[str, int]] = set()
        for topic in (_SCHEDULE_TOPIC, f"%DLQ%{group}"):
            for queue in known.get(topic, ()):
                self._found.update(
                    origin(m) for m in self._latest(topic, queue) if self._is_of_group(m)
                )

    def __contains__(self, key: object) -> bool:
        """Return whether a copy with this origin was made."""
        return key in self._found

    def _is_of_group(self, message: StoredMessage) -> bool:
        real = message.all_properties.get("REAL_TOPIC", "")
        return message.topic == self._targets[1] or real == self._targets[0]

    def _latest(self, topic: str, queue: int) -> list[StoredMessage]:
        """Return the messages of a queue from the log offset on, by reading from its end to the front."""
        low = self._store.min_offset(topic, queue)
        stop = self._store.max_offset(topic, queue)
        found: list[StoredMessage] = []
        while stop > low:
            start = max(stop - _AT_ONCE, low)
            read = self._read(topic, queue, start, stop)
            new = [message for message in read if message.log_offset >= self._log_offset]
            found += new
            if read and len(new) < len(read):
                break
            stop = start
        return found

    def _read(self, topic: str, queue: int, start: int, stop: int) -> list[StoredMessage]:
        """Return the messages with the queue offsets [start, stop)."""
        found: list[StoredMessage] = []
        while start < stop:
            read = self._store.read(topic, queue, start, stop - start)
            found += [message for message in read.messages if message.queue_offset < stop]
            if read.next_offset <= start:
                break
            start = read.next_offset
        return found
