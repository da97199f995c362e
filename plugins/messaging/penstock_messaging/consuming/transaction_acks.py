"""The messages that one transaction acknowledges at its end: held from its `ack` on, recorded or given back."""

import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.contracts import OpenStore
from penstock.errors import ArgumentError, ArgumentTypeError
from penstock_messaging.consuming.answers import BoundAcks, Tickets
from penstock_messaging.consuming.consumed_message import HandedMessage
from penstock_messaging.consuming.consumer import GroupConsumer

_EXPECTED = "a message that a consumer of this store has delivered"


class GroupAcks(NamedTuple):
    """The acknowledgements of one queue by a group."""

    group: str
    acks: BoundAcks


class TransactionAcks:
    """The acknowledgements of one transaction. Not thread-safe: the transaction calls it under its lock.

    From `add` on until `record` or `give_back`, no time ends a message, and no other answer to it is taken.
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._messages: dict[GroupConsumer, list[HandedMessage]] = {}
        # Once this object is gone, consumers give back what it has not: an interrupt came between.
        self._holder = weakref.ref(self)

    def __len__(self) -> int:
        return sum(map(len, self._messages.values()))

    def add(self, given: object) -> None:
        """Hold one message or several, all or none.

        Raises:
            ArgumentError: one is not a message that a group's consumer of this store has delivered.
            AlreadyAnsweredError: one has an answer, or is part of a transaction.
            LostQueueError: the queue of one is lost.
        """
        checked: dict[GroupConsumer, list[HandedMessage]] = {}
        for message in self._checked(given):
            checked.setdefault(message.flight.consumer, []).append(message)
        counts = {consumer: len(self._messages.get(consumer, ())) for consumer in checked}
        try:
            for consumer, some in checked.items():
                consumer.bind(some, self._holder)
            for consumer, some in checked.items():
                self._messages.setdefault(consumer, []).extend(some)
        except BaseException:
            for consumer, some in checked.items():
                kept_messages = self._messages.get(consumer, [])
                del kept_messages[counts[consumer] :]
                kept = set(kept_messages)
                consumer.give_back([each for each in some if each not in kept], self._holder)
            raise

    def _checked(self, given: object) -> list[HandedMessage]:
        if isinstance(given, HandedMessage):
            some: list[object] = [given]
        elif isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray):
            some = list(given)
        else:
            raise ArgumentTypeError(
                "ack", "messages", given, f"{_EXPECTED}, or several of them in a list"
            )
        found = []
        for each in some:
            if not isinstance(each, HandedMessage):
                raise ArgumentTypeError("ack", "messages", each, _EXPECTED)
            consumer = each.flight.consumer
            if not consumer.is_of(self._store):
                raise ArgumentError(
                    "ack", "messages", each, f"{_EXPECTED} object, and not of another one"
                )
            if consumer.options.broadcast:
                expected = f"{_EXPECTED} to a group: nothing is acknowledged of broadcast messages"
                raise ArgumentError("ack", "messages", each, expected)
            found.append(each)
        return found

    def acks(self) -> list[GroupAcks]:
        """Return the acknowledgements by group and queue; raises `LostQueueError` if a queue is lost."""
        return [
            GroupAcks(consumer.group, each)
            for consumer, some in self._messages.items()
            for each in consumer.bound_acks(some)
        ]

    def record(self) -> tuple[list[Callable[[], None]], list[Exception]]:
        """Record all acknowledgements; return functions that wait for the disk, and what could not be recorded."""
        tickets: Tickets = []
        failures: list[Exception] = []
        for consumer, some in self._messages.items():
            made, failed = consumer.record_bound(some)
            tickets += made
            failures += failed
        return [_sync(owned.sync, ticket) for owned, ticket in tickets], failures

    def give_back(self) -> None:
        """Unbind all messages: they count as delivered again."""
        for consumer, some in self._messages.items():
            consumer.give_back(some, self._holder)


def _sync(sync: Callable[[int], None], ticket: int) -> Callable[[], None]:
    return lambda: sync(ticket)
