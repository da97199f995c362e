"""Extensions: work around a store, such as consumers or delays; and the store's public methods that they use."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Unpack

from penstock.contracts.base import Context, Strategy, WorkWakes
from penstock.contracts.dispatcher import Finding, QueueEntries
from penstock.contracts.messaging import GroupLag, PutOptions
from penstock.message import Message, ReadResult, Receipt, StoredMessage


class MessageWaiter(Protocol):
    """Waits for new messages of any process: `ask`, then a check, then `rest` or `go_on`. Not thread-safe."""

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

    @property
    def newest_time_ms(self) -> int:
        """The store time of the newest record at opening; no record has a later one."""


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
            wait: whether to wait as a put does, if the flush policy makes puts wait; None if a message requests it.
            decision: the number of the batch's decision; `decided_batches` finds it by the low 30 bits.
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

    def topics(self, *, system: bool = False) -> dict[str, list[int]]:
        """Return every topic with the numbers of its queues; with `system` also RocketMQ's own topics."""

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
        since: float | datetime | timedelta | None = None,
        until: float | datetime | timedelta | None = None,
        limit: int | None = None,
    ) -> list[StoredMessage]:
        """Return the messages with a key; raises `ConfigError` if the store has no key index."""

    def put_copies(self, copies: Iterable[tuple[Message, bytes]]) -> Sequence[Receipt]:
        """Append copies of messages, each with its properties text."""

    def awaited(self, receipt: Receipt) -> Receipt:
        """Return the receipt of a message that was put without waiting as a put with `wait=True` would return it."""

    def message_batch(self) -> MessageBatch:
        """Return a batch to which messages are added one by one, and that is stored whole or not at all."""

    def decided_batches(self, log_offset: int) -> set[int]:
        """Return the decisions, low 30 bits each, of the whole atomic batches that begin at or after `log_offset`."""

    def flush(self) -> int:
        """Make all messages put so far durable."""

    def commit_offset(self, group: str, topic: str, queue: int, *, offset: int) -> None:
        """Commit durably how far a group has read a queue."""

    def move_offsets(
        self, moves: Mapping[tuple[str, str, int], tuple[int | None, int]]
    ) -> set[tuple[str, str, int]]:
        """Commit multiple offsets durably, each only if it is still the expected one; return those not moved."""

    def offset_at(
        self, topic: str, queue: int, time: float | datetime | timedelta, *, boundary: str = "lower"
    ) -> int:
        """Return the queue offset at a store time."""

    def remove_offsets(self, group: str) -> None:
        """Remove the committed offsets of a group in all topics."""

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """Return the offset a group reads next; None if it never committed one."""

    def groups(self, *, system: bool = False) -> list[GroupLag]:
        """Return the committed offset of each group in each queue; with `system` also in RocketMQ's own topics."""

    def topic_generation(self, topic: str) -> int:
        """Return how often a topic was removed."""

    def recheck_puts(self, topic: str) -> None:
        """Call `Extension.check_put` again before the next put to each queue of a topic."""

    def waiter(self) -> MessageWaiter:
        """Return an object with which one thread waits for new messages."""

    def work_wakes(self) -> WorkWakes:
        """Return an object to wake background work in the writing process, to be passed to `Context.spawn` there."""


class SummaryLine(NamedTuple):
    """One line of what `Extension.summary` says about a store.

    Attributes:
        key: its name in JSON, unique within the store: lower-case words joined by `_`.
        what: what is shown, as the first column of `penstock stat`.
        text: the value as text, the second column.
        value: the value for programs; anything that JSON can hold.
    """

    key: str
    what: str
    text: str
    value: Any


class Extension(Strategy):
    """Adds behaviour around a store (`[extensions]`). Any number may be configured; each has an instance an open store.

    The order of calls: the constructor; `attach`, once the store is open; any of the other methods, from any thread;
    `detach`, before the store closes. A store that is opened read-only has extensions, too: `context.read_only` is
    True, and `rewrite`, `check_put` and `queues_of` are not called.

    Attributes:
        record_reserve: by how many bytes the copies that it stores later of a message may be larger than the message's
            record. A put is refused unless its record leaves so much of a segment; copies (`put_copies`) need not.
        provides: names of public methods of `Store` that this extension implements, such as "consumer". `Store` calls
            the method of the same name on the first configured extension that lists it.
        callbacks: names of those arguments of `penstock.open` that take functions of the program, and that this
            extension gets as `functions`, by name, if they were given; `open` has one such argument, "check_back".
    """

    record_reserve: ClassVar[int] = 0
    provides: ClassVar[frozenset[str]] = frozenset()
    callbacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Any, context: Context, functions: Mapping[str, Any]) -> None:
        super().__init__(options, context)
        self.functions = functions

    def attach(self, store: OpenStore) -> None:
        """Begin: the store is recovered, and takes puts unless it is read-only.

        Background work is started with `context.spawn`, and stopped in `detach`. If this raises, the store is closed,
        and the opening raises the same exception.
        """

    def detach(self) -> None:
        """End all work; the store still takes puts, unless it has failed. Must not raise. May be called again."""

    def check_put(self, topic: str, queue: int) -> None:
        """Raise a `MessageError` to refuse puts to a queue.

        Called before the first put to each queue, and again after `OpenStore.recheck_puts`, not for each message; never
        for copies (`put_copies`). Topic and queue are valid by themselves.
        """

    def queues_of(self, topic: str) -> int | None:
        """Return over how many queues, from 0, messages without a queue number are distributed; None if not known here.

        Called before a topic's first such message, and again after `OpenStore.recheck_puts`. One if no extension knows.
        """
        return None

    def add_queue(self, topic: str, queue: int) -> None:
        """Give a topic that messages created a queue, before messages with queues picked elsewhere are put to it."""

    def rewrite(self, message: Message) -> Message | tuple[Message, bytes] | None:
        """Return what is stored in place of a message that requests more than to be stored; None if not known here.

        Called for a message with a delay or a partition key; one without a partition key has a queue number. Must
        return a message with a queue number and none of these requests, or such a message with its whole properties
        text, as `put_copies` takes it. Raises a `MessageError` to refuse the message.
        """
        return None

    def summary(self) -> Sequence[SummaryLine]:
        """Return lines for `LowLevelStore.summary` and `penstock stat`, such as what waits; none by default.

        Called for a store opened read-only, too, so it must read what it says from the store's files. Lines about what
        the store does not use are left out.
        """
        return []

    @property
    def is_behind(self) -> bool:
        """Whether it has yet to put what came due before this opening. Retention waits for that, a minute at most."""
        return False

    def findings(self) -> Iterable[Finding]:
        """Return the problems in the extension's own files, for `Store.verify`; changes nothing. None by default."""
        return ()

    def stats(self) -> dict[str, Any]:
        """Return figures for `Store.stats()`."""
        return {}
