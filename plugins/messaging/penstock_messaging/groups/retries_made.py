"""Which retries of a group the log has from an offset on: a kill between a retry and its mark makes no second one."""

from collections.abc import Callable

from penstock import StoredMessage
from penstock.contracts import OpenStore
from penstock_messaging.copies_made import latest

_SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class RetriesMade:
    """The retries and dead letters that a group got since a log offset. Not thread-safe."""

    def __init__(
        self, store: OpenStore, group: str, log_offset: int,
        origin: Callable[[StoredMessage], tuple[str, int]],
    ) -> None:  # fmt: skip
        """Read them; `origin` returns first id and number of tries of a copy."""
        retries, letters = f"%RETRY%{group}", f"%DLQ%{group}"
        known = store.topics(system=True)
        self._found: set[tuple[str, int]] = set()
        for topic in (_SCHEDULE_TOPIC, letters):
            for queue in known.get(topic, ()):
                for message in latest(store, topic, queue, lambda m: m.log_offset >= log_offset):
                    if topic == letters or message.all_properties.get("REAL_TOPIC") == retries:
                        self._found.add(origin(message))

    def __contains__(self, key: object) -> bool:
        """Return whether a copy with this origin was made."""
        return key in self._found
