"""Transactions as programs see them; an extension that provides "transaction" implements them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Protocol, Self, TypedDict, Unpack

from penstock.contracts.consumer import AnsweredMessages
from penstock.message import Message, Receipt


class PutOptions(TypedDict, total=False):
    """The optional arguments of `Store.put`, which `Transaction.put` takes as well; see `Message` for their meaning.

    Attributes:
        queue: the queue's number; default the topic's queues in turn.
        tag: one word to filter by.
        keys: texts to find the message by.
        properties: further text pairs.
        flag: 32 bits for the caller.
        delay_level: 1 to 18: deliver the message later.
        delay: deliver the message so long after the call of `put`: seconds, or a `timedelta`.
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

    An exception that leaves the block drops all of them. All methods may be called from any thread, inside of the block.
    """

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts of the messages, in the order of the calls, once the block has ended; empty before, and if it failed."""

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
        """Acknowledge one message of a consumer, or many, when the block ends: if and only if the messages put here are stored.

        They are held until then: no other answer to them is taken, and `ack_wait` does not end. If the transaction fails, they are
        given back as if this had not been called: they can be answered, and have their whole `ack_wait`. A transaction without
        messages to store acknowledges as `Consumer.ack` does.

        Raises:
            ArgumentError: one is not a message that a group's consumer of this store object has handed out; none is held.
            AlreadyAnsweredError: one has an answer, is part of a transaction, or was handed out again; none is held.
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
        """Store all messages, or drop them after an exception; if this raises, nothing was stored and nothing acknowledged.

        Only after a failure of the disk during the flush, the outcome is open until the store is opened again: it then has
        all messages, or none.
        """
