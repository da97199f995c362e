"""The queues of a member as consumers use them: they record answers durably and give queues back."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol


class FoundPosition(Protocol):
    """How far a group has consumed a queue when a member took it."""

    @property
    def base(self) -> int:
        """All messages before this queue offset are done."""

    @property
    def acked(self) -> Sequence[tuple[int, int]]:
        """Ranges [first, end) from `base` on that are acknowledged, sorted."""

    @property
    def nacked(self) -> Iterable[int]:
        """Offsets that were refused and are not yet stored as retries: the writing process does that."""

    @property
    def tries(self) -> Mapping[int, int]:
        """Offset to how many tries of the message have ended: in an ordered queue, or with the death of a consumer."""

    @property
    def died(self) -> Collection[int]:
        """The offsets of `tries` whose last try ended with the death of the consumer."""


# The generation, epoch and event number of a queue's journal (`groups.entries`): who owns the queue, and since when.
Turn = tuple[int, int, int]


class QueueRight(Protocol):
    """A queue whose right this member has, until `hand_back`. Safe from any thread.

    A queue can be lost while this member has it (`is_lost`): its topic was deleted, the log was cut, or something else
    moved the group's offset. Every method that records something then raises `LostQueueError`.

    Each method that records something returns a ticket for `sync`; all messages before `base` are done.
    """

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def queue(self) -> int:
        """The queue's number."""

    @property
    def position(self) -> FoundPosition:
        """How far the group was when this member took the queue."""

    @property
    def turn(self) -> Turn | None:
        """The identity of this member's right; None if nothing is recorded of the queue."""

    @property
    def is_lost(self) -> bool:
        """Whether this member has lost the queue before it gave it back."""

    @property
    def lost_reason(self) -> str:
        """Why this member has lost the queue, or that it gave it back; "" while it has it."""

    def ack(self, offsets: Sequence[int], base: int) -> int:
        """Record acknowledgements: sorted offsets without repetitions."""

    def hand_out(self, offsets: Sequence[int], base: int) -> None:
        """Record that messages are delivered: the next owner counts those as tried that have no answer; not synced."""

    def free(self, offsets: Sequence[int], base: int) -> None:
        """Record that messages are released, all if none is given; not synced."""

    def nack(
        self, offset: int, level: int, tries: int, base: int, count: int = 1, reason: bytes = b""
    ) -> int:  # fmt: skip
        """Record that a message is refused.

        `level` is a delay level, 0 by the rule, -1 to make it a dead letter, -2 if that is because its consumer died.
        `tries` is the maximum number of retries, or `GROUP_TRIES` for the group's setting; `count` is how many tries
        have ended; `reason` says why.
        """

    def has_refused(self, offset: int) -> bool:
        """Return whether a `nack` of this message that was interrupted is recorded."""

    def retry(self, offset: int, tries: int, base: int) -> int:
        """Record how often a message of an ordered queue was refused."""

    def reset(self, offset: int) -> int:
        """Record that the group continues at `offset`, whatever was acknowledged."""

    def advance(self, base: int) -> None:
        """Record progress without an acknowledgement, over messages that the filter excludes; not synced."""

    def sync(self, ticket: int) -> None:
        """Return when what was recorded up to this ticket is on disk."""

    def hand_back(self) -> None:
        """Sync, and give the right to the queue back."""


# The value of `tries` that stands for the group's own setting.
GROUP_TRIES = 0xFFFF

OnQueue = Callable[[QueueRight], None]


class GroupMembership(Protocol):
    """Membership of a group, and the queues that this member has."""

    def start(self) -> None:
        """Join the group and take the first queues."""

    def step(self) -> None:
        """Take queues that are this member's and free, and ask for those that others should have."""

    def has_new(self) -> bool:
        """Return whether there are queues that the last `step` did not know; may be called while that runs."""

    def stop(self) -> None:
        """Leave the group; all queues were handed back before."""
