"""Answers to messages: acknowledged, refused, released, extended."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.contracts.deliveries import of_one_flight, open_offsets
from penstock.contracts.dispatcher import DELAY_SECONDS
from penstock.errors import (
    AlreadyAnsweredError,
    ArgumentError,
    ArgumentTypeError,
    LostQueueError,
    StorageError,
)
from penstock.format import arguments
from penstock_messaging.consuming.assigned_queues import AssignedQueues
from penstock_messaging.consuming.consumed_message import (
    ANSWERED,
    BOUND,
    DONE,
    LATE,
    NACKED,
    OUT,
    HandedMessage,
)
from penstock_messaging.consuming.in_flight import Holder, InFlight, QueueFlight
from penstock_messaging.consuming.queue_rights import GROUP_TRIES, QueueRight, Turn
from penstock_messaging.groups.entries import REASON_BYTES
from penstock_messaging.retries.copies import CONSUMER_DIED, DEAD_LETTER

if TYPE_CHECKING:
    from penstock_messaging.consuming.consumer import GroupConsumer

BY_RULE = 0
# How long an ordered queue waits to retry a message that was refused without a level, as RocketMQ's clients do.
_ORDERED_PAUSE_MS = 1000

Tickets = list[tuple[QueueRight, int]]


class BoundAcks(NamedTuple):
    """The acknowledgements of one queue that are part of a transaction."""

    topic: str
    queue: int
    turn: Turn
    offsets: list[int]


class RetryRules:
    """When a refused message is retried, and how often.

    Args:
        max_retries: the consumer's option; None for the group's setting.
        group_retries: returns the group's setting.
        delay_ms: returns the delay of a level.
    """

    def __init__(
        self,
        max_retries: int | None,
        group_retries: Callable[[], int],
        delay_ms: Callable[[int], int],
    ) -> None:
        self.tries = GROUP_TRIES if max_retries is None else max_retries
        self._max_retries = max_retries
        self._group_retries = group_retries
        self._delay_ms = delay_ms

    def is_last(self, attempt: int) -> bool:
        """Return whether a message that is refused at this attempt becomes a dead letter."""
        most = self._group_retries() if self._max_retries is None else self._max_retries
        return attempt > most

    def pause_ns(self, level: int) -> int:
        """Return how long an ordered queue waits for the next try."""
        return (self._delay_ms(level) if level else _ORDERED_PAUSE_MS) * 1_000_000


class Answers:
    """Records the answers to messages of one consumer. Safe from any thread.

    Answers are recorded under the consumer's lock, in their order; waiting for the disk is done without it.
    """

    def __init__(
        self,
        consumer: "GroupConsumer",
        lock: AbstractContextManager[Any],
        in_flight: InFlight,
        queues: AssignedQueues,
        rules: RetryRules,
        now_ns: Callable[[], int],
        *,
        ordered: bool,
    ) -> None:
        self._consumer = consumer
        self._lock = lock
        self._in_flight = in_flight
        self._queues = queues
        self._rules = rules
        self._now_ns = now_ns
        self._ordered = ordered

    # --- delivered

    def hand_out(self, given: list[HandedMessage]) -> list[HandedMessage]:
        """Record that messages are delivered; return those that are. The caller has the lock.

        A message whose consumers died with it more often than it may be retried is refused instead. On a disk that is
        full or has failed, messages are delivered nevertheless: they only do not count as tried if this process dies.
        """
        one = of_one_flight(given, HandedMessage)
        if one is not None and not one.died:
            self._record_out(one, given)
            return [] if one.is_over else given
        for flight in dict.fromkeys(each.flight for each in given):
            some = [each for each in given if each.flight is flight and not self._give_up(each)]
            if some:
                self._record_out(flight, some)
        return [each for each in given if each.state == OUT]

    def _record_out(self, flight: QueueFlight, given: list[HandedMessage]) -> None:
        try:
            flight.owned.hand_out(open_offsets(given, flight.open), flight.base)
        except LostQueueError:
            self._queues.lose(flight)
        except (OSError, StorageError):
            # The answer will say so.
            pass

    def _give_up(self, message: HandedMessage) -> bool:
        """Return whether a message was refused, since too many consumers died with it.

        Two at the least: the first may have died of another message that it had as well; the next try is made alone.
        """
        tries = message.attempt - 1
        here = tries - (message.stored.reconsume_times if message.flight.is_retry else 0)
        is_over = self._rules.is_last(tries) and here > 1
        if message.offset in message.flight.died and is_over:
            with suppress(OSError, StorageError):
                self._refuse(message, CONSUMER_DIED)
        return message.state != OUT

    # --- acknowledged

    def ack_one(self, message: HandedMessage, *, sync: bool) -> None:
        """Acknowledge one message: the short way of `ack`."""
        flight = message.flight
        if flight.consumer is not self._consumer:
            raise _foreign("ack", message)
        with self._lock:
            opened = flight.open
            if self._in_flight.bound:
                self._check_unbound([message])
            if message.state == NACKED:
                self._check_not_nacked([message])
            if message.offset in opened:
                flight.ticket = ticket = self._recorded(flight, (message.offset,))
                self._in_flight.finish(message)
                if not sync:
                    flight.is_unsynced = True
                    return
            else:
                # Acknowledged before, perhaps without a sync; or the queue is gone.
                ticket = flight.ticket
                self._check_lost(self._over([message]))
        if sync:
            self._consumer.read_ahead()
            flight.owned.sync(ticket)

    def ack(self, given: list[HandedMessage], *, sync: bool) -> None:
        """Acknowledge messages: first those of queues that are not lost and can be written; raises for the others."""
        tickets, over, failures = self._record_acks(given, sync=sync)
        if sync:
            self._consumer.read_ahead()
            failures += _synced(tickets)
        self._check(over, failures)

    def begin_ack(self, given: list[HandedMessage]) -> Callable[[], None]:
        """Acknowledge messages as `ack` does without a sync; return what waits until that is on disk."""
        tickets, over, failures = self._record_acks(given, sync=False)
        self._check(over, failures)

        def wait() -> None:
            self._check((), _synced(tickets))

        return wait

    def _record_acks(
        self, given: list[HandedMessage], *, sync: bool
    ) -> tuple[Tickets, list[QueueFlight], list[Exception]]:
        """Record acknowledgements; return what is to be synced, the queues that were over, and what has failed."""
        one = of_one_flight(given, HandedMessage)
        by_flight: dict[QueueFlight, list[HandedMessage]] = {} if one is None else {one: given}
        for message in given if one is None else ():
            by_flight.setdefault(message.flight, []).append(message)
        tickets: Tickets = []
        failures: list[Exception] = []
        with self._lock:
            self._check_unbound(given)
            self._check_not_nacked(given)
            over = self._over(given)
            for flight, some in by_flight.items():
                offsets = open_offsets(some, flight.open)
                if offsets:
                    try:
                        flight.ticket = self._recorded(flight, offsets)
                    except (OSError, StorageError) as error:
                        failures.append(error)
                        continue
                    flight.is_unsynced |= not sync
                    self._in_flight.finish_all(flight, some)
                if flight not in over:
                    tickets.append((flight.owned, flight.ticket))
        return tickets, over, failures

    def _recorded(self, flight: QueueFlight, offsets: Sequence[int]) -> int:
        try:
            # The lowest offset that is open is the base.
            return flight.owned.ack(offsets, next(iter(flight.open)))
        except LostQueueError:
            self._queues.lose(flight)
            raise

    # --- refused

    def nack(self, given: list[HandedMessage], level: int, reason: bytes = b"") -> None:
        """Refuse messages; those of queues that are not lost and can be written, before this raises for the others."""
        tickets: Tickets = []
        failures: list[Exception] = []
        with self._lock:
            self._check_unbound(given)
            for message in given if not self._consumer.options.broadcast else ():
                if message.state in ANSWERED and not message.flight.is_over:
                    raise self._answered(message)
            over = self._over(given)
            for message in given:
                if not message.flight.is_over and self._in_flight.is_current(message):
                    try:
                        tickets.append((message.flight.owned, self._refuse(message, level, reason)))
                    except (OSError, StorageError) as error:
                        failures.append(error)
        failures += _synced(tickets)
        self._check(over, failures)

    def _refuse(self, message: HandedMessage, level: int, reason: bytes = b"") -> int:
        """Record that a message is refused; return the ticket."""
        flight, rules = message.flight, self._rules
        # Without those of the copies before.
        tries = message.attempt - (message.stored.reconsume_times if flight.is_retry else 0)
        is_last = rules.is_last(message.attempt)
        if level == CONSUMER_DIED:
            tries -= 1
        elif is_last:
            level = DEAD_LETTER
        try:
            if self._ordered and not is_last:
                flight.ticket = flight.owned.retry(message.offset, tries, flight.base)
                self._in_flight.retry_at(message, self._now_ns() + rules.pause_ns(level))
                message.state = NACKED
                return flight.ticket
            flight.ticket = flight.owned.nack(
                message.offset, level, rules.tries, flight.base, tries, reason
            )
            self._in_flight.finish(message, NACKED)
        except LostQueueError:
            self._queues.lose(flight)
            raise
        except BaseException:
            # An interrupt: a refusal that is recorded is retried, so the message must not be delivered again as well.
            with suppress(OSError):
                if flight.owned.has_refused(message.offset):
                    self._in_flight.finish(message, NACKED)
            raise
        return flight.ticket

    # --- neither

    def release(self, given: list[HandedMessage]) -> None:
        """Make delivered messages ready again."""
        with self._lock:
            self._check_unbound(given)
            freed = [
                each for each in given if each.state in (OUT, LATE) and self._in_flight.is_current(each)]  # fmt: skip
            for flight in {each.flight for each in freed}:
                some = [each for each in freed if each.flight is flight]
                flight.owned.free(open_offsets(some, flight.open), flight.base)
            self._in_flight.release(given)

    def extend(self, given: list[HandedMessage]) -> None:
        """Restart the time of messages that are delivered."""
        with self._lock:
            now_ns = self._now_ns()
            for message in given:
                self._in_flight.extend(message, now_ns)

    def _check_unbound(self, given: Iterable[HandedMessage]) -> None:
        """Raise `AlreadyAnsweredError` for a message that is part of a transaction; nothing was recorded yet."""
        if self._in_flight.bound:
            for message in given:
                if self._in_flight.is_bound(message):
                    raise self._answered(message)

    def _answered(self, message: HandedMessage) -> AlreadyAnsweredError:
        why = {DONE: "it was acknowledged before", NACKED: "it was nacked before"}.get(
            message.state
        )
        if why is None:
            is_bound = self._in_flight.is_bound(message)
            why = "it was given back, or delivered anew"
            if is_bound:
                why = "a transaction acknowledges it at its end"
        return AlreadyAnsweredError(message.topic, message.queue, message.offset, why)

    def _check_not_nacked(self, given: Iterable[HandedMessage]) -> None:
        """Raise `AlreadyAnsweredError` for a message that was nacked: it will be retried; nothing was recorded yet."""
        for message in given:
            if message.state == NACKED and not message.flight.is_over:
                raise self._answered(message)

    # --- part of a transaction

    def bind(self, given: Sequence[HandedMessage], holder: Holder) -> None:
        """Bind messages to a transaction, all or none.

        Raises:
            AlreadyAnsweredError: one has an answer, is bound already, or was redelivered.
            LostQueueError: the queue of one is lost.
        """
        with self._lock:
            now_ns, bound = (
                self._now_ns(),
                {each for each in given if each in self._in_flight.bound},
            )
            try:
                for message in given:
                    self._bind_one(message, holder)
            except BaseException:
                for message in given:
                    if message not in bound:
                        self._in_flight.give_back(message, now_ns, holder)
                raise

    def _bind_one(self, message: HandedMessage, holder: Holder) -> None:
        if message.flight.is_over and message.state not in ANSWERED:
            self._check_lost([message.flight])
        if not self._in_flight.bind(message, holder):
            raise self._answered(message)

    def bound_acks(self, given: Sequence[HandedMessage]) -> list[BoundAcks]:
        """Return what the acknowledgements of bound messages are, by queue; raises `LostQueueError` if one is lost."""
        by_flight: dict[QueueFlight, list[int]] = {}
        for message in given:
            by_flight.setdefault(message.flight, []).append(message.offset)
        with self._lock:
            found = []
            for flight, offsets in by_flight.items():
                turn = flight.owned.turn
                if flight.is_over or flight.owned.is_lost or turn is None:
                    reason = flight.owned.lost_reason or "the consumer went on elsewhere in it"
                    raise self._consumer.forked or LostQueueError(
                        flight.topic, flight.queue, reason
                    )
                found.append(BoundAcks(flight.topic, flight.queue, turn, sorted(offsets)))
            return found

    def record_bound(self, given: Sequence[HandedMessage]) -> tuple[Tickets, list[Exception]]:
        """Record the acknowledgements of bound messages; return what is to be synced, and what has failed.

        A queue whose journal fails is lost: its next owner finds the acknowledgements in the decision. The part that
        an interrupted earlier call has done is not done again.
        """
        by_flight: dict[QueueFlight, list[HandedMessage]] = {}
        tickets: Tickets = []
        failures: list[Exception] = []
        with self._lock:
            for message in given:
                some = by_flight.setdefault(message.flight, [])
                # Another thread may have carried it out meanwhile.
                if message.state == BOUND:
                    some.append(message)
            for flight, some in by_flight.items():
                if flight.is_over:
                    # After a `seek`, answers to earlier messages do nothing.
                    if flight.is_lost:
                        failures.append(LostQueueError(flight.topic, flight.queue))
                    continue
                try:
                    if some:
                        flight.ticket = self._recorded(flight, sorted(each.offset for each in some))
                except (OSError, StorageError) as error:
                    failures.append(error)
                    self._queues.lose(flight)
                    continue
                flight.is_unsynced = True
                tickets.append((flight.owned, flight.ticket))
                for message in some:
                    self._in_flight.finish_bound(message)
        return tickets, failures

    def give_back(self, given: Iterable[HandedMessage], holder: Holder) -> None:
        """Unbind messages from a transaction, which has failed: they count as delivered again."""
        with self._lock:
            now_ns = self._now_ns()
            for message in given:
                self._in_flight.give_back(message, now_ns, holder)

    def _over(self, given: Iterable[HandedMessage]) -> list[QueueFlight]:
        """Return the queues that are gone where a message had no answer; in a forked child, all that are gone."""
        is_forked = self._consumer.forked is not None
        return [
            each.flight
            for each in given
            if each.flight.is_over and (each.state not in ANSWERED or is_forked)
        ]

    def _check(self, over: Iterable[QueueFlight], failures: Sequence[Exception]) -> None:
        """Raise the first failure, and for a queue that was lost before."""
        if failures:
            raise failures[0]
        self._check_lost(over)

    def _check_lost(self, flights: Iterable[QueueFlight]) -> None:
        """Raise for the first queue that was lost; after a `seek`, answers to earlier messages do nothing."""
        for flight in flights:
            if flight.is_lost:
                reason = flight.owned.lost_reason or "it is handed back to the group"
                raise self._consumer.forked or LostQueueError(flight.topic, flight.queue, reason)

    def checked(self, call: str, given: object) -> list[HandedMessage]:
        """Return one message or many as a list; refuses anything else, and messages of other consumers."""
        if type(given) is list:
            flight = of_one_flight(given, HandedMessage)
            if flight is not None and flight.consumer is self._consumer:
                return list(given)
        if isinstance(given, str | bytes | bytearray) or not isinstance(
            given, HandedMessage | Iterable
        ):
            expected = "a message that this consumer has delivered, or several of them in a list"
            raise ArgumentTypeError(call, "messages", given, expected)
        found = []
        for at, each in enumerate([given] if isinstance(given, HandedMessage) else given):
            if not isinstance(each, HandedMessage):
                expected = "a message that this consumer has delivered"
                raise ArgumentTypeError(call, f"messages[{at}]", each, expected)
            if each.flight.consumer is not self._consumer:
                raise _foreign(call, each)
            found.append(each)
        return found


def level_for(delay: object) -> int:
    """Return the first delay level that lasts as long as the delay of a refusal; `BY_RULE` for None."""
    if delay is None:
        return BY_RULE
    seconds = arguments.seconds("nack", "delay", delay, 0, DELAY_SECONDS[-1])
    return next(level for level, lasts in enumerate(DELAY_SECONDS, 1) if seconds <= lasts)


def reason_text(reason: object) -> bytes:
    """Return the reason of a refusal, a text or an exception, as one printable line of at most `REASON_BYTES`."""
    if reason is None:
        return b""
    if isinstance(reason, BaseException):
        try:
            reason = f"{type(reason).__name__}: {reason}".removesuffix(": ")
        except Exception:
            reason = type(reason).__name__
    text = arguments.instance("nack", "reason", reason, str, "a text or an exception")
    plain = "".join(c if c.isprintable() else " " for c in text.lstrip()[:REASON_BYTES])
    return plain.strip().encode()[:REASON_BYTES].decode(errors="ignore").encode()


def _synced(tickets: Tickets) -> list[Exception]:
    """Sync all queues, also after one has failed; return the failures."""
    failures: list[Exception] = []
    last = {id(owned): (owned, ticket) for owned, ticket in tickets}
    for owned, ticket in last.values():
        try:
            owned.sync(ticket)
        except (OSError, StorageError) as error:
            failures.append(error)
    return failures


def _foreign(call: str, message: HandedMessage) -> ArgumentError:
    return ArgumentError(call, "messages", message, "a message that this consumer has delivered")
