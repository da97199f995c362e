"""Consumers, transactions, prepared and delayed messages, and topics, as programs see them; extensions provide them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypedDict, Unpack

from penstock.message import Message, Receipt, StoredMessage


class ConsumerOptions(TypedDict, total=False):
    """The optional arguments of `Store.consumer`.

    Attributes:
        tag: which messages: `*`, one tag, or multiple tags joined by `||`; default `*`. Other messages count as done.
        start: where a group begins that has never consumed the topic: "earliest", "latest", or a time: a `datetime`
            with a time zone, Unix seconds, or a `timedelta`: so long ago. Default "earliest", for `broadcast` "latest".
        ack_wait: seconds, or a `timedelta`, after which a message that was neither acknowledged nor nacked is delivered
            again, 0.001 s to 86,400 s; default 30. `run` extends it while its handler works.
        max_in_flight: maximum number of messages that are delivered and not answered, 1 to 1,000,000; default 1000. A
            queue is read at most so many offsets, or 2,000 if that is more, beyond its first message without an answer.
        workers: how many threads `run` uses, 1 to 1024; default 1.
        ordered: deliver one message of a queue at a time, in order: the next one waits for the answer, also while a
            nacked message waits for its retry; default False.
        broadcast: every consumer gets all messages, and nothing is acknowledged or retried; default False.
        max_retries: how often a message is retried before it becomes a dead letter, also after the death of its
            consumer's process, 0 to 10,000; default the group's setting, 16.
    """

    tag: str
    start: str | float | datetime | timedelta
    ack_wait: float | timedelta
    max_in_flight: int
    workers: int
    ordered: bool
    broadcast: bool
    max_retries: int


class Pending(NamedTuple):
    """A message that is delivered and not answered.

    Attributes:
        topic: the topic that it was read from: of a retried message, the group's retry topic.
        queue: the queue's number.
        offset: its queue offset.
        age_s: seconds since it was delivered.
        left_s: seconds until it is redelivered.
    """

    topic: str
    queue: int
    offset: int
    age_s: float
    left_s: float


class GroupLag(NamedTuple):
    """How far a group is in one queue.

    Attributes:
        group: the group's name.
        topic: the topic.
        queue: the queue's number.
        offset: the queue offset before which the group has acknowledged every message.
        lag: the number of messages that it has not acknowledged.
    """

    group: str
    topic: str
    queue: int
    offset: int
    lag: int


class ConsumedMessage(Protocol):
    """A message that a consumer has delivered; it has all attributes of `StoredMessage`, and methods to answer it.

    A retried message has the topic and the `message_id` of its first put; `stored` is the copy that was read.

    Attributes:
        stored: the message as it is stored.
        topic: the topic that it was first put to.
        attempt: 1, and 1 more for each time that the message was nacked, or that the process of its consumer died with
            it. Being redelivered because it was released or not answered in time does not count.
    """

    stored: StoredMessage
    topic: str
    attempt: int

    @property
    def body(self) -> bytes:
        """The caller's bytes."""

    @property
    def tag(self) -> str:
        """The tag; "" if there is none."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the producer gave it, as in `StoredMessage`."""

    @property
    def message_id(self) -> str:
        """The id that it had when it was first put."""

    @property
    def reason(self) -> str:
        """The reason of the last nack; "" at the first delivery, and if none was given."""

    @property
    def queue(self) -> int:
        """The number of the queue that it was read from: of a retried message, a queue of the group's retry topic."""

    @property
    def queue_offset(self) -> int:
        """Its offset in that queue."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stored message."""

    def ack(self, *, sync: bool = True) -> None:
        """Acknowledge this message; see `Consumer.ack`."""

    def nack(
        self, *, delay: float | timedelta | None = None, reason: str | BaseException | None = None
    ) -> None:
        """Nack this message, so that it is retried; see `Consumer.nack`."""

    def release(self) -> None:
        """Give this message back unanswered; see `Consumer.release`."""

    def extend(self) -> None:
        """Restart `ack_wait` for this message."""


# What the methods that answer take: one message or many.
AnsweredMessages: TypeAlias = ConsumedMessage | Iterable[ConsumedMessage]


class Consumer(Protocol):
    """A member of a consumer group, or a broadcast reader; returned by `Store.consumer`. Safe from any thread.

    A message that was delivered is redelivered only after it was nacked or released, after `ack_wait`, or after its
    queue went to another member: when this consumer closes, or its process ends. A process that dies with a message in
    hand counts as one that nacked it; the message's last try is then delivered while nothing else is.

    Iterating delivers one message after another and waits for new ones without end; it ends when the consumer closes. A
    loop that is left with `break` releases what it has delivered; the last message at the thread's next request.

    Use it as a context manager. If an `Exception` leaves the block, the message in hand is nacked: the one that
    this thread got last, by iterating or by a `poll` that returned only one. Everything else that was delivered or
    fetched is released, and another consumer gets it at once, without being counted as a retry. So is everything when
    the block ends in any other way: at its end, with `KeyboardInterrupt`, `SystemExit` or a cancelled task.
    """

    def __iter__(self) -> Iterator[ConsumedMessage]:
        """Deliver messages, waiting for new ones without end."""

    def poll(
        self, limit: int = 1, timeout: float | timedelta | None = None
    ) -> Sequence[ConsumedMessage]:
        """Deliver up to `limit` messages.

        Args:
            limit: maximum number of messages, 1 to 1,000,000.
            timeout: how many seconds, or which `timedelta`, to wait for the first message; None waits without end.

        Raises:
            ConsumerClosedError: the consumer is closed, or was closed meanwhile.
            StorageError: the consumer has failed, for example because its files cannot be written.
        """

    def take(self, limit: int = 1) -> Sequence[ConsumedMessage]:
        """Deliver up to `limit` messages that were read ahead; neither reads nor waits, for event loops."""

    def gather(self, limit: int = 1) -> Sequence[ConsumedMessage]:
        """Deliver up to `limit` messages that are stored already; reads, and does not wait for new ones."""

    def run(
        self,
        handler: Callable[[ConsumedMessage], object],
        *,
        handler_timeout: float | timedelta | None = None,
    ) -> None:
        """Call `handler` for each message, in `workers` threads, until `close`: acks if it returns, nacks if it raises.

        `ack_wait` is extended as long as the handler works, for `handler_timeout` seconds at most. After these, the
        message is redelivered; how the first handler ends still counts as long as nobody else has the message.

        A message that the handler has answered itself is left as it is. `close` may be called by the handler, another
        thread or a signal handler: this returns when the handlers have returned. It does the same after Ctrl-C or
        SIGTERM in the main thread, unless the program handles the signal itself; a second one acts as always. An
        exception that is not an `Exception`, such as `SystemExit`, ends all threads and is raised here.
        """

    def ack(self, messages: AnsweredMessages, *, sync: bool = True) -> None:
        """Acknowledge one message or many: the group does not get them again.

        Returns when it is on disk, or with `sync=False` at once: then a crash of the machine within the next second may
        lose it, and a crash of the process does not. Many messages in one call, or threads, share a sync.

        An acknowledgement counts also after `ack_wait`, even if the message was redelivered.

        Raises:
            AlreadyAnsweredError: this delivery of a message was nacked before; nothing was recorded.
            LostQueueError: the queue of a message is no longer this consumer's: another one gets the message. The other
                messages are acknowledged.
        """

    def begin_ack(self, messages: AnsweredMessages) -> Callable[[], None]:
        """Acknowledge as `ack` with `sync=False`; return a function that waits until that is on disk, for event loops.

        The function raises as `ack` does; it need not be called.
        """

    def nack(
        self,
        messages: AnsweredMessages,
        *,
        delay: float | timedelta | None = None,
        reason: str | BaseException | None = None,
    ) -> None:
        """Nack messages, durably: they are retried later, and become dead letters after `max_retries`.

        Does nothing for a message that was redelivered after `ack_wait`.

        Args:
            messages: one message or many.
            delay: how long to wait before the retry, at most 2 hours: seconds, or a `timedelta`; rounded up to one of
                the 18 delays of RocketMQ (docs/delays.md). None: 10 s, longer after each retry; with `ordered`, 1 s.
            reason: why: a text, or an exception, of which type and text are kept. The retry and the dead letter carry
                its first 64 bytes as the property FAILURE_REASON, and `penstock dlq show` shows it.

        Raises:
            AlreadyAnsweredError: a message was acknowledged or nacked before; nothing was recorded.
            LostQueueError: as `ack`.
        """

    def release(self, messages: AnsweredMessages) -> None:
        """Give messages back unanswered: they are redelivered at once, without being counted as a retry."""

    def extend(self, messages: AnsweredMessages) -> None:
        """Restart `ack_wait` for messages that take longer; does nothing for a message whose time is over."""

    def seek(
        self,
        topic: str,
        queue: int | None = None,
        *,
        offset: int | None = None,
        time: float | datetime | timedelta | None = None,
    ) -> None:
        """Continue at an offset, or at a time, in one queue or in all queues of a topic that this consumer has.

        Returns when that is on disk. Messages that are delivered are forgotten: answers to them do nothing.

        Args:
            topic: the topic.
            queue: the queue's number; all queues of the topic that this consumer has if None.
            offset: the queue offset to continue at. One before the first message means the first message.
            time: the store time to go to: a `datetime` with a time zone, Unix seconds, or a `timedelta`, so long ago.

        Raises:
            ArgumentError: this consumer does not have the queue, or the offset is after its end.
        """

    def pause(self, *topics: str) -> None:
        """Deliver nothing more of these topics, or of all topics, until `resume`."""

    def resume(self, *topics: str) -> None:
        """Undo `pause` for these topics, or for all."""

    def lag(self) -> list[GroupLag]:
        """Return how far the group is in the queues of this consumer, sorted, also in `%RETRY%<group>`.

        `Store.groups` returns all queues.
        """

    def assignment(self) -> list[tuple[str, int]]:
        """Return the queues that this consumer has, as (topic, queue), sorted."""

    def pending(self) -> list[Pending]:
        """Return the messages that are delivered and not answered."""

    def close(self) -> None:
        """Release everything that was not answered and leave the group; calling it again does nothing.

        Called by a signal handler in the middle of a call of this consumer, it returns at once: the end of that call,
        of a later one, or of the `with` block does the rest; a failure of it is logged. What the call would have
        delivered is released, too.
        """

    def __enter__(self) -> Self:
        """Return the consumer."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception in the block, nack the message in hand first."""


class PutOptions(TypedDict, total=False):
    """The optional arguments of `Store.put`, which `Transaction.put` takes as well; see `Message` for their meaning.

    Attributes:
        queue: the queue's number; default the topic's queues in turn.
        tag: one word to filter by.
        keys: texts to find the message by.
        properties: further text pairs.
        flag: 32 bits for the caller.
        delay_level: 1 to 18: deliver the message later.
        delay: the time from the call of `put` to the delivery: seconds, or a `timedelta`.
        deliver_at: deliver the message at this time: a `datetime` with a time zone, or Unix seconds.
        born_time_ms: when the message was created; default the time of the call.
        born_host: "address:port" of the producer; default the store's own.
        partition_key: text that picks the queue.
        wait: False if this message need not be durable when the transaction ends, under a flush policy that waits; the
            transaction waits if one of its messages requests it. Default True.
    """

    queue: int | None
    tag: str
    keys: Sequence[str]
    properties: Mapping[str, str] | None
    flag: int
    delay_level: int
    delay: float | timedelta
    deliver_at: float | datetime | None
    born_time_ms: int | None
    born_host: str | None
    partition_key: str | None
    wait: bool


class Transaction(Protocol):
    """Messages that are stored together at the end of a `with` block, or not at all; returned by `Store.transaction`.

    An exception that leaves the block drops all of them. Any thread may call the methods, inside of the block.
    """

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts of the messages, in the order of the calls, once the block has ended; else empty."""

    def put(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> None:
        """Check a message as `Store.put` does, and add it to the transaction.

        If this raises, the message is not part of the transaction, which can still be used.

        Raises:
            MessageError: the message cannot be stored.
            MessageTooLargeError: it, or the whole transaction, is too large; a transaction must fit into one segment.
            TransactionEndedError: the block has ended, or has not begun.
        """

    def put_many(self, messages: Iterable[Message]) -> None:
        """Check messages as `Store.put_many` does, and add all of them to the transaction, or none if this raises."""

    def ack(self, messages: AnsweredMessages) -> None:
        """Acknowledge a consumer's message, or many, when the block ends: if and only if its messages are stored.

        They are held until then: no other answer to them is taken, and `ack_wait` does not end. If the transaction
        fails, they are given back as if this had not been called: they can be answered, and have their whole
        `ack_wait`. A transaction without messages to store acknowledges as `Consumer.ack` does.

        Raises:
            ArgumentError: one was not delivered by a group's consumer of this store object; none is held.
            AlreadyAnsweredError: one has an answer, is part of a transaction, or was redelivered; none is held.
            LostQueueError: this consumer no longer has the queue of one; none is held.
            TransactionEndedError: the block has ended, or has not begun.
        """

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Store all messages, or drop them after an exception; if this raises, nothing was stored or acknowledged.

        Only after a failure of the disk during the flush, the outcome is open until the store is opened again: it then
        has all messages, or none.
        """


class Prepared(Protocol):
    """A message that is stored, and that no reader of its topic sees until it is committed. Safe from any thread.

    As a context manager, it is committed at the end of the block, unless it was finished there. If an exception leaves
    the block, it is rolled back; but if the store was opened with a check-back for its group, that decides instead,
    since the exception may have come after the commit of your database.

    Attributes:
        transaction_id: its id, also in the property UNIQ_KEY.
        group: the group whose program decides about it.
        topic: the topic that it is for.
        queue: the queue that it is for.
        checks: how often a check-back was asked about it.
    """

    transaction_id: str
    group: str
    topic: str
    queue: int

    @property
    def checks(self) -> int:
        """The number of check-backs so far."""

    @property
    def reason(self) -> str:
        """Why a commit would fail now, as far as its topic's configuration says; else empty."""

    @property
    def age_s(self) -> float:
        """Seconds since it was born."""

    @property
    def message(self) -> StoredMessage:
        """The half message, with body, tag, keys and properties; raises `OffsetError` if retention deleted it."""

    def commit(self, *, wait: bool = True) -> Receipt:
        """Put the message into its topic; return its receipt. Waits for the disk as `Store.put`, if `wait` is True.

        Raises:
            PreparedFinishedError: it was committed or rolled back before; nothing was stored.
            MessageError: its topic takes no messages any more; nothing was stored, and it is still prepared.
        """

    def rollback(self) -> None:
        """Drop the message.

        Raises `PreparedFinishedError` if it was committed or rolled back before; nothing was stored.
        """

    def __enter__(self) -> Self:
        """Return the prepared message; no check-back is asked about it during the block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back; see above."""


CheckBack: TypeAlias = Callable[[Prepared], str | None]
CheckBacks: TypeAlias = CheckBack | Mapping[str, CheckBack]


class DelayedMessage(NamedTuple):
    """A message that waits to be delivered at a time.

    Attributes:
        message_id: names it for `Store.cancel_delayed`.
        topic: the topic to which it will be delivered.
        queue: the queue of that topic.
        due_ms: when, Unix milliseconds.
        born_time_ms: when it was created.
        body_bytes: the size of its body.
    """

    message_id: str
    topic: str
    queue: int
    due_ms: int
    born_time_ms: int
    body_bytes: int


# Bits of `TopicConfig.perm`.
READ, WRITE = 4, 2


class TopicOptions(TypedDict, total=False):
    """The optional arguments of `Store.create_topic` and `Store.alter_topic`; None is as left out.

    Attributes:
        queues: how many queues the topic has, 1 to 65,536; default for a new one `extensions.messaging.default_queues`.
        write_queues: how many of them new messages are distributed to; default as many as `queues`.
        perm: the sum of 4 (may be read) and 2 (may be put to); default of a new topic 6.
        attributes: RocketMQ 5's, to add or change, such as `{"message.type": "FIFO"}`; an empty text removes one.
    """

    queues: int | None
    write_queues: int | None
    perm: int | None
    attributes: Mapping[str, str] | None


class TopicConfig(NamedTuple):
    """The configuration of a topic, as in `config/topics.json`.

    Attributes:
        topic: its name.
        read_queues: how many queues consumers read: 0 up to this number.
        write_queues: how many queues new messages are distributed to; less than `read_queues` while queues are drained.
        perm: the sum of 4 (may be read), 2 (may be put to) and, in a broker's topics, 1 (a template of topics) and 8.
        order: clients of a broker use the name server's order of queues; without effect in Penstock.
        attributes: attributes of RocketMQ 5, such as `message.type`; empty in files of 4.x.
        is_auto: the topic was created by its first message; imports and Spark sinks add the queues that they put to.
    """

    topic: str
    read_queues: int
    write_queues: int
    perm: int = READ | WRITE
    order: bool = False
    attributes: Mapping[str, str] = MappingProxyType({})
    is_auto: bool = False

    @property
    def queues(self) -> int:
        """The number of queues."""
        return max(self.read_queues, self.write_queues)

    @property
    def is_writable(self) -> bool:
        """Whether messages may be put to the topic."""
        return bool(self.perm & WRITE)
