"""A queue that this process may consume for a group: its lock, its journal, and the position where it was taken."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.errors import LostQueueError, StorageError
from penstock_messaging.groups.entries import GROUP_SETTING, EntryKind
from penstock_messaging.groups.fold import Position, ranges_of
from penstock_messaging.groups.journal import Journal
from penstock_messaging.groups.queue_lock import QueueLock

__all__ = ["GROUP_SETTING", "TOPIC_DELETED", "OwnedQueue"]

TOPIC_DELETED = "its topic was deleted"


class OwnedQueue:
    """A queue with its owner's rights, from its taking until `hand_back`. Safe from any thread.

    Every call but `hand_back` raises `LostQueueError` once the queue is lost: it was handed back, somebody else moved
    the group's offset, its topic or the group was deleted, or the process was forked. Answers since do not count.

    Attributes:
        topic: the topic.
        queue: the queue's number.
        epoch: how often the queue was taken.
        position: how far the group had consumed it when it was taken.
    """

    def __init__(
        self, topic: str, queue: int, lock: QueueLock, journal: Journal, position: Position,
        on_handed_back: Callable[["OwnedQueue"], None] = lambda _queue: None,
        on_refused: Callable[[], None] = lambda: None,
        on_recorded: Callable[[], None] = lambda: None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.queue = queue
        self.epoch = journal.head.epoch
        self.position = position
        self._lock = lock
        self._journal = journal
        self._on_handed_back = on_handed_back
        self._on_refused = on_refused
        self._on_recorded = on_recorded
        self._is_current = is_current
        self._has_handed_out = False

    @property
    def is_lost(self) -> bool:
        """Whether answers do not count any more."""
        return self._journal.refusal is not None

    @property
    def lost_reason(self) -> str:
        """Why answers do not count any more; "" if they do."""
        refusal = self._journal.refusal
        return "" if refusal is None else getattr(refusal, "reason", str(refusal))

    @property
    def generation(self) -> int:
        """The queue's generation, as in its journal."""
        return self._journal.head.generation

    @property
    def turn(self) -> tuple[int, int, int]:
        """The generation, epoch and last event of the journal; another owner, or a reset, has other numbers."""
        head = self._journal.head
        return head.generation, head.epoch, self._journal.number

    def ack(self, offsets: Sequence[int], base: int) -> int:
        """Record that messages are consumed; return a ticket for `sync`.

        After this call a kill of the process does not lose it; the machine may lose it until `sync` returns.

        Args:
            offsets: their queue offsets, sorted, without repetitions.
            base: all messages below it are consumed or refused.
        """
        if not offsets:
            return self._journal.append(EntryKind.BASE, 0, 0, base)
        return self._append(EntryKind.ACK, offsets, base)

    def _append(self, kind: int, offsets: Sequence[int], base: int) -> int:
        count = len(offsets)
        if offsets[-1] - offsets[0] + 1 == count:
            return self._journal.append(kind, offsets[0], count, base)
        return self._journal.append_ranges(ranges_of(offsets), base, kind)

    def hand_out(self, offsets: Sequence[int], base: int) -> None:
        """Record that messages are delivered: a death of this process then is a try. A machine crash may lose it."""
        self._has_handed_out = True
        self._append(EntryKind.OUT, offsets, base)

    def free(self, offsets: Sequence[int], base: int) -> None:
        """Record that messages are delivered no more, all if none is given; as durable as `hand_out`.

        What cannot be recorded counts as tried if this process dies.
        """
        if self._has_handed_out and not self.is_lost:
            with suppress(OSError, StorageError):
                if offsets:
                    self._append(EntryKind.FREE, offsets, base)
                else:
                    self._journal.append(EntryKind.FREE, 0, 0, base)

    def nack(
        self, offset: int, level: int, tries: int, base: int, count: int = 1, reason: bytes = b""
    ) -> int:  # fmt: skip
        """Record that a message is refused: the process that holds the store for writing makes a retry of it.

        Args:
            offset: its queue offset.
            level: the delay level of the retry, 1 to 18; 0: by the number of tries so far; -1: a dead letter at once;
                -2: the same, since its consumer died too often.
            tries: after how many retries the message becomes a dead letter; `GROUP_SETTING` for the group's own number.
            base: as in `ack`.
            count: how many tries of it have ended since it was stored.
            reason: why, in at most `REASON_BYTES` bytes of UTF-8.

        Returns:
            A ticket for `sync`.
        """
        ticket = self._journal.append(EntryKind.NACK, offset, count, base, level, tries, reason)
        self._on_refused()
        return ticket

    def has_refused(self, offset: int) -> bool:
        """Return whether a `nack` of this message that was interrupted is recorded."""
        return self._journal.has_refused(offset)

    def retry(self, offset: int, tries: int, base: int) -> int:
        """Record how often an ordered consumer has tried a message; return a ticket for `sync`."""
        return self._journal.append(EntryKind.RETRY, offset, 1, base, 0, min(tries, GROUP_SETTING))

    def reset(self, offset: int) -> int:
        """Record that the group goes on at an offset, in either direction; return a ticket for `sync`.

        Refused messages are retried nevertheless.
        """
        return self._journal.append(EntryKind.RESET, offset, 0, offset)

    def advance(self, base: int) -> None:
        """Record progress without acknowledgements; if a crash of the machine loses it, messages are skipped again."""
        self._journal.append(EntryKind.BASE, 0, 0, base)

    def sync(self, ticket: int) -> None:
        """Return when everything up to a ticket is durable; threads share syncs. Raises as `Journal.sync`."""
        self._journal.sync(ticket)
        # The answer may be to a message of a topic of the same name that was created since.
        if not self._is_current():
            self._journal.refuse(TOPIC_DELETED)
            raise LostQueueError(self.topic, self.queue, TOPIC_DELETED)
        self._on_recorded()

    def lose(self, reason: str) -> None:
        """Refuse all further answers, with this reason."""
        self._journal.refuse(reason)

    def check_lock(self) -> None:
        """Lose the queue if its lock file was removed: another process may hold a new one."""
        if not self._lock.is_held:
            self._journal.refuse("the file of its lock was removed")

    def hand_back(self) -> None:
        """Make everything durable, and let another member take the queue; a second call does nothing.

        Raises `StorageError` if the disk fails; the queue is handed back nevertheless.
        """
        try:
            self.free((), 0)
            self._journal.close()
        finally:
            # Also after an interrupt: without the lock nothing may be appended.
            self._journal.refuse("it was handed back to the group")
            self._lock.release()
            self._on_handed_back(self)
            self._on_recorded()
