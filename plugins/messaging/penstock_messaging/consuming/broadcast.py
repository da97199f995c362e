"""Broadcast: every consumer gets all messages. Positions are in memory only, and nothing is recorded."""

from collections.abc import Sequence

from penstock.contracts import OpenStore
from penstock_messaging.consuming.in_flight import StartPosition
from penstock_messaging.consuming.queue_rights import OnQueue
from penstock_messaging.consuming.selection import TopicSelection


def first_offset(store: OpenStore, topic: str, queue: int, start: str | int) -> int:
    """Return where a consumer begins in a queue: "earliest", "latest", or at a time in Unix milliseconds."""
    if start == "earliest":
        return store.min_offset(topic, queue)
    if start == "latest":
        return store.max_offset(topic, queue)
    return store.offset_at(topic, queue, int(start) / 1000)


def selected(store: OpenStore, selection: TopicSelection) -> set[tuple[str, int]]:
    """Return the queues that a store has of the selected topics, as (topic, queue)."""
    return {
        (topic, queue)
        for topic, queues in store.topics(system=True).items()
        if selection.matches(topic)
        for queue in queues
    }


class BroadcastQueue:
    """A queue that every broadcast consumer has (`QueueRight`)."""

    turn = None
    is_lost = False
    lost_reason = ""

    def __init__(self, topic: str, queue: int, offset: int) -> None:
        self.topic, self.queue = topic, queue
        self.position = StartPosition(offset)

    def ack(self, offsets: Sequence[int], base: int) -> int:
        """Record nothing."""
        return 0

    def hand_out(self, offsets: Sequence[int], base: int) -> None:
        """Record nothing."""

    def free(self, offsets: Sequence[int], base: int) -> None:
        """Record nothing."""

    def nack(
        self, offset: int, level: int, tries: int, base: int, count: int = 1, reason: bytes = b""
    ) -> int:  # fmt: skip
        """Record nothing."""
        return 0

    def has_refused(self, offset: int) -> bool:
        """Return False: nothing is recorded."""
        return False

    def retry(self, offset: int, tries: int, base: int) -> int:
        """Record nothing."""
        return 0

    def reset(self, offset: int) -> int:
        """Record nothing."""
        return 0

    def advance(self, base: int) -> None:
        """Record nothing."""

    def sync(self, ticket: int) -> None:
        """Return at once."""

    def hand_back(self) -> None:
        """Do nothing: there is no right to the queue."""


class BroadcastClaims:
    """All queues of the selected topics (`GroupMembership`).

    Args:
        start: where to begin in the queues that exist when the consumer is made; later ones are read from the start.
    """

    def __init__(
        self, store: OpenStore, selection: TopicSelection, start: str | int, on_claimed: OnQueue
    ) -> None:
        self._store = store
        self._selection = selection
        self._start = start
        self._on_claimed = on_claimed
        self._known: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Begin with the queues that exist."""
        self._look(self._start)

    def step(self) -> None:
        """Look for new queues."""
        self._look("earliest")

    def has_new(self) -> bool:
        """Return whether there are queues that no step has found."""
        return not selected(self._store, self._selection) <= self._known

    def _look(self, start: str | int) -> None:
        for topic, queue in sorted(selected(self._store, self._selection) - self._known):
            offset = first_offset(self._store, topic, queue, start)
            self._known.add((topic, queue))
            self._on_claimed(BroadcastQueue(topic, queue, offset))

    def stop(self) -> None:
        """Do nothing: nobody knows of this consumer."""
