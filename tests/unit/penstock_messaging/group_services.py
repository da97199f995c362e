"""Groups of a store by themselves, without consumers, and the service that takes their journals in."""

from collections import Counter
from typing import Any

import attrs

from penstock import Message, StoredMessage
from penstock.files import Files
from penstock.store.store import Store
from penstock.testing import ManualClock
from penstock.testing.kit import make_context
from penstock_messaging.groups.intake import Intake
from penstock_messaging.groups.owned_queue import OwnedQueue
from penstock_messaging.groups.taking import Groups

GROUP, TOPIC = "billing", "orders"
SETTINGS: dict[str, Any] = {"extensions.use": [], "retention": []}


class PlainRetries:
    """Retries as a broker stores them, with the few properties by which they are recognised."""

    def copy(
        self,
        message: StoredMessage,
        group: str,
        level: int | None,
        tries: int | None,
        more: int = 1,
        reason: bytes = b"",
    ) -> tuple[Message, bytes]:
        """Return a delayed retry."""
        first_id, count = self.origin(message)
        pairs = {"ORIGIN_MESSAGE_ID": first_id, "REAL_TOPIC": f"%RETRY%{group}"}
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
        copy = Message(
            "SCHEDULE_TOPIC_XXXX", message.body, queue=(level or 3 + count) - 1, reconsume_times=count + more,
        )  # fmt: skip
        return copy, text.encode()

    def letters(self, message: StoredMessage, group: str, _: object) -> list[tuple[Message, bytes]]:
        """Return a dead letter."""
        return [(Message(f"%DLQ%{group}", message.body, queue=0), b"")]

    def origin(self, message: StoredMessage) -> tuple[str, int]:
        """Return the first id and the number of tries."""
        named = message.all_properties.get("ORIGIN_MESSAGE_ID", message.message_id)
        return named, message.reconsume_times

    def were_put(self) -> None:
        """Do nothing: no thread delivers them."""


def services(store: Store, files: Files, clock: ManualClock) -> tuple[Groups, Intake]:
    """Return the groups of an open store, and the service that takes their journals in."""
    context = make_context(store.path, files=files, clock=clock)
    context = attrs.evolve(context, read_only=store.read_only)
    groups = Groups(context, store.lowlevel)
    return groups, Intake(groups, PlainRetries(), store.lowlevel.work_wakes())


def take(groups: Groups, topic: str = TOPIC, queue: int = 0, group: str = GROUP) -> OwnedQueue:
    """Take a queue, which must be free."""
    taken = groups.claim(group, topic, queue, member="1-test", begin=lambda: 0)
    assert taken is not None
    return taken


def retries_of(store: Store) -> Counter[str]:
    """Return how many retries each first message has, by its body."""
    found: Counter[str] = Counter()
    for queue in store.topics(system=True).get("SCHEDULE_TOPIC_XXXX", ()):
        found.update(
            m.body.decode() for m in store.read("SCHEDULE_TOPIC_XXXX", queue, 0, 1000).messages
        )
    return found
