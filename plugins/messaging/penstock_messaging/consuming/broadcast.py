"""Broadcast: every consumer gets all messages. Positions are in memory only, and nothing is recorded."""

from collections.abc import Callable, Sequence
from functools import partial

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
    lost_reason = ""

    def __init__(self, topic: str, queue: int, offset: int, is_lost: Callable[[], bool]) -> None:
        self.topic, self.queue = topic, queue
        self.position = StartPosition(offset)
        self._is_lost = is_lost

    @property
    def is_lost(self) -> bool:
        """Whether its topic was deleted."""
        return self._is_lost()

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
        start: where to begin in the queues that exist when the consumer is made; later ones are read from the start,
            also those of a topic that is deleted and made again.
    """

    def __init__(
        self, store: OpenStore, selection: TopicSelection, start: str | int, on_claimed: OnQueue,
        on_wanted_back: OnQueue,
    ) -> None:  # fmt: skip
        self._store = store
        self._selection = selection
        self._start = start
        self._on_claimed = on_claimed
        self._on_wanted_back = on_wanted_back
        self._known: dict[tuple[str, int], BroadcastQueue] = {}

    def start(self) -> None:
        """Begin with the queues that exist."""
        self._look(self._start)

    def step(self) -> None:
        """Look for new queues."""
        self._look("earliest")

    def has_new(self) -> bool:
        """Return whether there are queues that no step has found."""
        if any(each.is_lost for each in list(self._known.values())):
            return True
        return not selected(self._store, self._selection) <= self._known.keys()

    def _look(self, start: str | int) -> None:
        for place, known in list(self._known.items()):
            if known.is_lost:
                del self._known[place]
                self._on_wanted_back(known)
        for topic, queue in sorted(selected(self._store, self._selection) - self._known.keys()):
            # Before the offset: a topic that is deleted in between is lost.
            is_lost = partial(self._is_removed, topic, self._store.topic_generation(topic))
            owned = BroadcastQueue(
                topic, queue, first_offset(self._store, topic, queue, start), is_lost
            )
            self._known[topic, queue] = owned
            self._on_claimed(owned)

    def _is_removed(self, topic: str, generation: int) -> bool:
        return self._store.topic_generation(topic) != generation

    def stop(self) -> None:
        """Do nothing: nobody knows of this consumer."""
