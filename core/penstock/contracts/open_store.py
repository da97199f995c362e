"""The store as an extension sees it: the public methods of `penstock.Store` that it may call, and a few more."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, Unpack

from penstock.contracts.base import WorkWakes
from penstock.contracts.consumer import GroupLag
from penstock.contracts.dispatcher import QueueEntries
from penstock.contracts.transaction import PutOptions
from penstock.message import Message, ReadResult, Receipt, StoredMessage


class MessageWaiter(Protocol):
    """Waits for new messages, of any process: `ask`, then a check for messages, then `rest` or `go_on`. Not thread-safe."""

    def ask(self) -> None:
        """Call before a check: a message that is published after the check then ends `rest`."""

    def go_on(self) -> None:
        """Call after a check that found something."""

    def rest(self, at_most_s: float | None = None) -> bool:
        """Call after a check that found nothing: return when there may be something, or after `at_most_s` seconds.

        Returns whether it was woken.
        """

    def interrupt(self) -> None:
        """End `rest` of every thread and process that waits for this store's messages. Safe from any thread."""


class Recovered(Protocol):
    """The part of a `penstock.RecoveryReport` that extensions need."""

    @property
    def state(self) -> str:
        """The state of the store at opening: "new", "clean", or after a crash."""


class MessageBatch(Protocol):
    """Messages that are stored together, all or none, also if the machine stops meanwhile. Safe from any thread."""

    def __len__(self) -> int:
        """Return the number of records."""

    @property
    def size(self) -> int:
        """Bytes of all records."""

    @property
    def log_end(self) -> int:
        """The log offset at which the log ends now: the batch will begin there or after it."""

    def put(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> None:
        """Check a message as `Store.put` does, and add it; if this raises, the batch is as before.

        Raises `MessageTooLargeError` if the batch would not fit into one segment, `TransactionEndedError` after `end`.
        """

    def add(self, message: Message) -> None:
        """Like `put`, with the arguments in a message."""

    def add_many(self, messages: Iterable[Message]) -> None:
        """Check messages as `put_many` does, and add all of them; if this raises, the batch is as before."""

    def end(self) -> None:
        """Refuse all further messages."""

    def append(self, *, wait: bool | None = None, decision: int | None = None) -> Sequence[Receipt]:
        """Append all messages as one atomic batch; returns their receipts. The batch takes no more messages.

        Args:
            wait: whether to wait as a put does, under a flush policy that makes puts wait; None if a message requests it.
            decision: the number of the decision that belongs to the batch; `decided_batches` finds it by the low 30 bits.
        """


class OpenStore(Protocol):
    """An open store; see the methods of the same names in `penstock.Store`, which is what an extension gets."""

    path: Path

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only."""

    @property
    def recovery(self) -> Recovered | None:
        """The report of the recovery at opening; None if the store was opened read-only."""

    def topics(self) -> dict[str, list[int]]:
        """Return every topic with the numbers of its queues."""

    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first queue offset that can be read."""

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset that the next message will get."""

    def read(
        self, topic: str, queue: int, offset: int = 0, limit: int = 32, tag: str = "*"
    ) -> ReadResult:
        """Read messages of a queue."""

    def queue_entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """Return the entries of a queue from queue offset `start` to before `stop`, without reading the messages."""

    def at(self, log_offset: int) -> StoredMessage:
        """Return the message whose record begins at `log_offset`."""

    def check(self, message: Message, properties_text: bytes | None = None) -> None:
        """Raise the `MessageError` that `put_many` would raise for a message; nothing is stored."""

    def find(
        self,
        key: str,
        topic: str | None = None,
        *,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        limit: int | None = None,
    ) -> list[StoredMessage]:
        """Return the messages with a key; raises `ConfigError` if the store has no key index."""

    def put_copies(self, copies: Iterable[tuple[Message, bytes]]) -> Sequence[Receipt]:
        """Append copies of messages, each with its properties text."""

    def message_batch(self) -> MessageBatch:
        """Return a batch to which messages are added one by one, and that is stored whole or not at all."""

    def decided_batches(self, log_offset: int) -> set[int]:
        """Return the decisions, low 30 bits each, of the whole atomic batches that begin at `log_offset` or after it."""

    def flush(self) -> int:
        """Make all messages put so far durable."""

    def commit_offset(self, group: str, topic: str, queue: int, *, offset: int) -> None:
        """Commit durably how far a group has read a queue."""

    def move_offsets(
        self, moves: Mapping[tuple[str, str, int], tuple[int | None, int]]
    ) -> set[tuple[str, str, int]]:
        """Commit multiple offsets durably, each only if it is still the expected one; return those not moved."""

    def offset_at(
        self, topic: str, queue: int, time: float | datetime, *, boundary: str = "lower"
    ) -> int:
        """Return the queue offset at a store time."""

    def remove_offsets(self, group: str) -> None:
        """Remove the committed offsets of a group in all topics."""

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """Return the offset a group reads next; None if it never committed one."""

    def groups(self) -> list[GroupLag]:
        """Return the committed offset of each group in each queue."""

    def topic_life(self, topic: str) -> int:
        """Return how often a topic was removed."""

    def recheck_puts(self, topic: str) -> None:
        """Call `Extension.check_put` again before the next put to each queue of a topic."""

    def waiter(self) -> MessageWaiter:
        """Return an object with which one thread waits for new messages."""

    def work_wakes(self) -> WorkWakes:
        """Return an object to wake background work in the writing process, to be passed to `Context.spawn` there."""
