"""Which messages a consumer has fetched and delivered, and has no answer for. No file, no clock, no lock.

A message goes from fetched (`READY`) to delivered (`OUT`) to done (`DONE`), or back when it is released or its time is
over; each time that it is delivered it is a new `ConsumedMessage`, so that a late answer is told from an answer in
time. While its acknowledgement is part of a transaction that has not ended, it is bound (`BOUND`): no time ends that.

Invariants:
    * The base of a queue is its lowest offset that is fetched and not done. Messages that are not done are never before
      it, even if an interrupt stops one of these functions halfway.
    * At most `out_max` messages are delivered or bound, and a queue is fetched at most `SPAN_MAX` offsets beyond its
      base, or `out_max` if that is more.
    * The last try of a message whose consumer died is delivered only while nothing else is.
    * With `ordered`, at most one message of a queue is ready, waiting for a retry, or delivered.

Not thread-safe: `Consumer` calls it under its lock.
"""

import bisect
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock import StoredMessage
from penstock.contracts.deliveries import deliver, finish, hand_out
from penstock_messaging.consuming.consumed_message import (
    BOUND,
    DONE,
    LATE,
    OUT,
    OVER,
    READY,
    HandedMessage,
    shown_topic,
)
from penstock_messaging.consuming.queue_rights import FoundPosition, QueueRight

if TYPE_CHECKING:
    from penstock_messaging.consuming.consumer import GroupConsumer

# As in RocketMQ (consumeConcurrentlyMaxSpan): one message without an answer must not make a consumer's memory grow.
SPAN_MAX = 2000


NEVER_NS = 1 << 63

# Returns the transaction that has bound a message; None once it is gone.
Holder = Callable[[], object]


def _nobody() -> None:
    """Return no transaction."""


class Handling:
    """Who has the messages that handlers work on: their time is extended until `limit_ns` after they were delivered."""

    def __init__(self, limit_ns: int = NEVER_NS) -> None:
        self.limit_ns = limit_ns


class StartPosition(NamedTuple):
    """A position without any answers after `base`."""

    base: int
    acked: Sequence[tuple[int, int]] = ()
    nacked: Sequence[int] = ()
    tries: dict[int, int] = {}  # noqa: RUF012 - never changed
    died: Collection[int] = ()


class QueueFlight:
    """The messages of one queue that are fetched and not done.

    Attributes:
        open: offset to the current delivery, ascending.
        died: the offsets of messages whose last consumer died with them.
        fetched: the offset to fetch next.
        is_leaving: nothing more is delivered, and the queue is given back once nothing is out.
        is_lost: the queue was given back.
        is_over: the queue was given back, or the consumer continued elsewhere in it (`seek`).
    """

    def __init__(
        self,
        consumer: "GroupConsumer",
        owned: QueueRight,
        position: FoundPosition,
        *,
        is_retry: bool,
        span: int = SPAN_MAX,
    ) -> None:
        self.consumer = consumer
        self.owned = owned
        self.topic, self.queue = owned.topic, owned.queue
        self.is_retry, self._span = is_retry, span
        self.open: dict[int, HandedMessage] = {}
        self.fetched = position.base
        self._done = sorted([*position.acked, *((each, each + 1) for each in position.nacked)])
        self._tries, self.died = dict(position.tries), frozenset(position.died)
        self.is_leaving = self.is_lost = self.is_over = False
        # With `ordered`: the message whose answer is waited for, and those after it.
        self.current: HandedMessage | None = None
        self.line: deque[HandedMessage] = deque()
        # The ticket of the last record, whether it may have to be synced, and the base that was recorded last.
        self.ticket, self.is_unsynced, self.recorded = 0, False, position.base
        self._pass_done()

    @property
    def base(self) -> int:
        """The offset before which everything is done."""
        return next(iter(self.open), self.fetched)

    @property
    def room(self) -> int:
        """The number of offsets that may still be fetched."""
        return 0 if self.is_leaving or self.is_over else self._span - (self.fetched - self.base)

    @property
    def done_ahead(self) -> int:
        """The number of messages after those fetched that were done when the queue was taken."""
        return sum(end - max(first, self.fetched) for first, end in self._done)

    def accept(self, stored: Iterable[StoredMessage], following: int) -> list[HandedMessage]:
        """Add messages that were read from `fetched` to before `following`, except those that are done; return them."""
        if self.is_retry or self._done or self._tries:
            made = [self._delivery(each) for each in stored if not self._is_done(each.queue_offset)]
            self.open.update((each.offset, each) for each in made)
        else:
            made = deliver(HandedMessage, list(stored), self.topic, self, self.open)
        # Only now: an interrupt in between leaves nothing before the base that is not done.
        self.fetched = max(following, self.fetched)
        self._pass_done()
        return made

    def _delivery(self, stored: StoredMessage) -> HandedMessage:
        attempt = self._tries.pop(stored.queue_offset, 0) + 1
        if not self.is_retry:
            return HandedMessage(stored, self.topic, attempt, self, stored.queue_offset)
        topic = shown_topic(stored, self.topic)
        attempt += stored.reconsume_times
        return HandedMessage(stored, topic, attempt, self, stored.queue_offset)

    def _is_done(self, offset: int) -> bool:
        at = bisect.bisect_right(self._done, (offset, 1 << 63)) - 1
        return at >= 0 and offset < self._done[at][1]

    def _pass_done(self) -> None:
        """Continue after messages that are done; forget those before."""
        while self._done and self._done[0][0] <= self.fetched:
            self.fetched = max(self.fetched, self._done.pop(0)[1])


class InFlight:
    """The messages of a consumer, of all its queues.

    Attributes:
        out: what is delivered, to when its time is over in nanoseconds; the earliest first.
        bound: what was delivered, and is acknowledged by a transaction that has not ended: to what returns that, or
            None if it is gone.
    """

    def __init__(
        self, *, ack_wait_ns: int, out_max: int, ordered: bool = False, answers: bool = True,
        is_last: Callable[[int], bool] = lambda _attempt: False,
    ) -> None:  # fmt: skip
        self._ack_wait_ns = ack_wait_ns
        # How many may be delivered, without those that are bound.
        self._out_max = self._room = out_max
        self._ordered = ordered
        # Without answers, a message is done as soon as it is delivered.
        self._answers = answers
        # Whether a message is given up if its next try fails; asked only of messages whose consumer died.
        self._is_last, self._has_died = is_last, False
        self._ready: deque[HandedMessage] = deque()
        self.out: dict[HandedMessage, int] = {}
        self.bound: dict[HandedMessage, Holder] = {}
        # Messages of an ordered queue that wait for their retry: (when, number, message).
        self._later: list[tuple[int, int, HandedMessage]] = []
        # `expire` has nothing to do before.
        self._due_ns = NEVER_NS
        self._number = 0
        self._paused: set[str] = set()
        self._is_paused = False
        self._paused_messages: list[HandedMessage] = []

    # --- fetched and delivered

    def add(self, flight: QueueFlight, stored: Iterable[StoredMessage], following: int) -> int:
        """Add messages that were read from a queue; return how many are to be delivered."""
        made = flight.accept(stored, following)
        self._has_died |= bool(flight.died)
        if self._ordered:
            flight.line.extend(made)
            self._next_in_line(flight)
        else:
            self._ready.extend(made)
        return len(made)

    def _next_in_line(self, flight: QueueFlight) -> None:
        if flight.current is None and flight.line:
            flight.current = flight.line.popleft()
            self._ready.append(flight.current)

    def take(self, limit: int, now_ns: int, by: object = None) -> list[HandedMessage]:
        """Deliver up to `limit` messages."""
        if limit > 1 and not (self._ordered or self._is_paused or self._paused or self._has_died):
            found = self._take_run(limit, now_ns, by)
            if found:
                return found
        found = []
        while len(found) < limit:
            message = self.take_one(now_ns, by)
            if message is None:
                break
            found.append(message)
        return found

    def _take_run(self, limit: int, now_ns: int, by: object) -> list[HandedMessage]:
        """Deliver the first messages at once if all are ready, else none: as `take_one`, without a call for each."""
        if now_ns >= self._due_ns:
            self.expire(now_ns)
        ready, out, until_ns = self._ready, self.out, now_ns + self._ack_wait_ns
        found = list(islice(ready, min(limit, max(self._room - len(out), 0))))
        if not self._answers or not hand_out(found, READY, OUT, by, now_ns, out, until_ns):
            return []
        self._due_ns = min(self._due_ns, until_ns)
        for _ in found:
            ready.popleft()
        return found

    def take_one(self, now_ns: int, by: object = None) -> HandedMessage | None:
        """Deliver a message; None if there is none."""
        if now_ns >= self._due_ns:
            self.expire(now_ns)
        ready, out = self._ready, self.out
        if not ready or len(out) >= self._room:
            return None
        message = ready[0]
        if message.state != READY or self._is_paused or self._paused:
            found = self._next_ready()
            if found is None:
                return None
            message = found
        if self._has_died and not self._may_join(message):
            return None
        message.by, message.since_ns = by, now_ns
        message.state = OUT
        out[message] = until_ns = now_ns + self._ack_wait_ns
        if until_ns < self._due_ns:  # noqa: PLR1730 - once a message: a call of `min` costs more
            self._due_ns = until_ns
        # Only now: if an interrupt comes before, the message is redelivered when its time is over.
        ready.popleft()
        if not self._answers:
            self.finish(message)
        return message

    def _next_ready(self) -> HandedMessage | None:
        """Return the first message that is ready and not paused; removes those before it."""
        ready = self._ready
        while ready:
            message = ready[0]
            if message.state == READY and not self._keep_if_paused(message):
                return message
            ready.popleft()
        return None

    def _may_join(self, message: HandedMessage) -> bool:
        """Return whether a message may be delivered beside those that are.

        The last try of a message whose consumer died is alone: it must not be given up for what another one did.
        """
        return not self.out or not (self._is_alone(message) or self._is_alone(next(iter(self.out))))

    def _is_alone(self, message: HandedMessage) -> bool:
        return message.offset in message.flight.died and self._is_last(message.attempt)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be delivered before an answer."""
        if len(self.out) >= self._room:
            return True
        return self._has_died and bool(self._ready) and not self._may_join(self._ready[0])

    @property
    def has_ready(self) -> bool:
        """Whether there are messages to be delivered, or that were to be."""
        return bool(self._ready)

    def due_ns(self) -> int | None:
        """Return when the next message is redelivered by time; None if there is none."""
        times = [self._later[0][0]] if self._later else []
        times += [next(iter(self.out.values()))] if self.out else []
        return min(times, default=None)

    # --- answered

    def finish(self, message: HandedMessage, state: int = DONE) -> bool:
        """Mark a message as done, or `NACKED`, even if since redelivered; return False if it was already."""
        flight = message.flight
        current = flight.open.pop(message.offset, None)
        if current is None:
            return False
        self.out.pop(current, None)
        current.state = message.state = state
        if self._ordered:
            flight.current = None
            self._next_in_line(flight)
        return True

    def finish_all(self, flight: QueueFlight, messages: list[HandedMessage]) -> None:
        """Mark messages of one queue as done."""
        if self._ordered:
            for message in messages:
                self.finish(message)
            return
        finish(messages, flight.open, self.out, DONE)

    def is_current(self, message: HandedMessage) -> bool:
        """Return whether an answer other than an acknowledgement counts: not if the message was delivered anew."""
        current = message.flight.open.get(message.offset)
        return current is not None and (current is message or current.state == READY)

    def _end(self, message: HandedMessage) -> None:
        self.out.pop(message, None)
        if message.state == BOUND:
            self._unbind(message)
        message.state = OVER

    def has_out(self, flight: QueueFlight) -> bool:
        """Return whether messages of a queue are delivered or bound."""
        return any(each.flight is flight for out in (self.out, self.bound) for each in out)

    def release(self, messages: Iterable[HandedMessage]) -> None:
        """Make messages that are delivered ready again, before all others."""
        given = [each for each in messages if each.state == OUT]
        for message in sorted(given, key=_offset, reverse=True):
            following = self._following(message, message.attempt)
            if following is not None:
                self._ready.appendleft(following)

    def _following(self, message: HandedMessage, attempt: int) -> HandedMessage | None:
        """Replace a delivery by the next one; return None if the queue is leaving."""
        flight = message.flight
        self._end(message)
        if flight.is_leaving or flight.is_over:
            return None
        following = message.again(attempt)
        flight.open[message.offset] = following
        if self._ordered:
            flight.current = following
        return following

    def retry_at(self, message: HandedMessage, when_ns: int) -> None:
        """Redeliver a message of an ordered queue at a time; the queue waits for it."""
        current = message.flight.open[message.offset]
        following = self._following(current, message.attempt + 1)
        if following is not None:
            self._number += 1
            heapq.heappush(self._later, (when_ns, self._number, following))
            self._due_ns = min(self._due_ns, when_ns)

    def expire(self, now_ns: int) -> bool:
        """Make ready what was not answered in time, and retries whose time has come; return whether there were any."""
        over = []
        for message, until_ns in self.out.items():
            if until_ns > now_ns:
                break
            over.append(message)
        over = [each for each in over if not self._is_extended(each, now_ns)]
        self.release(over)
        for message in over:
            message.state = LATE
        found = bool(over)
        while self._later and self._later[0][0] <= now_ns:
            message = heapq.heappop(self._later)[2]
            if message.state == READY:
                self._ready.append(message)
                found = True
        due_ns = self.due_ns()
        self._due_ns = NEVER_NS if due_ns is None else due_ns
        return found

    def _is_extended(self, message: HandedMessage, now_ns: int) -> bool:
        """Extend the time of a message in a handler; return False if its limit is reached, or it has none."""
        by = message.by
        if not isinstance(by, Handling) or now_ns >= message.since_ns + by.limit_ns:
            return False
        self.extend(message, now_ns)
        limit_ns = message.since_ns + by.limit_ns
        if limit_ns < self.out[message]:
            self.out[message] = limit_ns
            self.out = dict(sorted(self.out.items(), key=itemgetter(1)))
        return True

    def extend(self, message: HandedMessage, now_ns: int) -> None:
        """Restart the time of a message that is delivered."""
        if message.state == OUT and message in self.out:
            # At the end: `out` is in the order of these times.
            del self.out[message]
            self.out[message] = now_ns + self._ack_wait_ns

    # --- bound to a transaction

    def bind(self, message: HandedMessage, holder: Holder) -> bool:
        """Bind a message to a transaction; return False if it cannot be: it is done, bound, or was delivered anew.

        Once `holder` returns None, `mend` gives the message back: an interrupt came before the transaction could.
        """
        flight = message.flight
        current = flight.open.get(message.offset)
        if current is None or current.state not in (READY, OUT):
            return False
        if current is not message:
            if current.state == OUT:
                return False
            # Its time was over, but nobody else has it yet.
            current.state = OVER
            flight.open[message.offset] = message
            if self._ordered:
                flight.current = message
        self.out.pop(message, None)
        message.state = BOUND
        self.bound[message] = holder
        self._room = self._out_max - len(self.bound)
        return True

    def _unbind(self, message: HandedMessage) -> None:
        self.bound.pop(message, None)
        self._room = self._out_max - len(self.bound)

    def finish_bound(self, message: HandedMessage) -> None:
        """Mark a message that is bound as done; does nothing if its queue is gone."""
        if message.state == BOUND:
            # In this order: an interrupt between must not redeliver what is recorded.
            self.finish(message)
            self._unbind(message)

    def give_back(self, message: HandedMessage, now_ns: int, holder: Holder) -> None:
        """Make a message that is bound to a transaction one that is delivered, with its whole time."""
        if message.state == BOUND and self.bound.get(message) is holder:
            self._unbind(message)
            message.state = OUT
            self.out[message] = until_ns = now_ns + self._ack_wait_ns
            self._due_ns = min(self._due_ns, until_ns)

    def is_bound(self, message: HandedMessage) -> bool:
        """Return whether a message is bound, by this delivery of it or another one."""
        current = message.flight.open.get(message.offset)
        return current is not None and current.state == BOUND

    # --- after an interrupt

    def mend(self, flights: Iterable[QueueFlight], now_ns: int) -> bool:
        """Complete what an interrupt may have cut off within any of these functions; return whether there was anything.

        A signal handler can raise between any two steps, and its program may go on with the consumer. The open messages
        of a queue count: each is ready, waits, or is delivered.
        """
        before = len(self._ready), len(self.out)
        for message in list(self.out):
            if message.state != OUT or message.flight.open.get(message.offset) is not message:
                # It was released, or is done or bound.
                del self.out[message]
        self.bound = {
            each: holder
            for each, holder in self.bound.items()
            if each.state == BOUND and each.flight.open.get(each.offset) is each
        }
        known = {*self._ready, *self._paused_messages, *(message for _, _, message in self._later)}
        for flight in flights:
            if not (flight.is_leaving or flight.is_over):
                self._mend_queue(flight, known, now_ns)
        for message, holder in list(self.bound.items()):
            if holder() is None and not message.flight.is_over:
                self.give_back(message, now_ns, holder)
        self._room = self._out_max - len(self.bound)
        due_ns = self.due_ns()
        self._due_ns = NEVER_NS if due_ns is None else due_ns
        return before != (len(self._ready), len(self.out))

    def _mend_queue(self, flight: QueueFlight, known: set[HandedMessage], now_ns: int) -> None:
        # What was added is not to be read again.
        flight.fetched = max(flight.fetched, next(reversed(flight.open), -1) + 1)
        for offset, message in flight.open.items():
            if message.state == OVER:
                # The next delivery, which was not made; no key is added.
                flight.open[offset] = message.again()
        waiting = []
        for message in flight.open.values():
            if message.state == OUT and message not in self.out:
                self.out[message] = now_ns + self._ack_wait_ns
            elif message.state == BOUND:
                self.bound.setdefault(message, _nobody)
            elif message.state == READY and message not in known:
                waiting.append(message)
        if not self._ordered:
            self._ready.extend(waiting)
            return
        current = flight.current
        if current is None or flight.open.get(current.offset) is not current:
            # The first one that is open, unless it waits for its retry.
            flight.current = current = next(iter(flight.open.values()), None)
        if current in waiting:
            waiting.remove(current)
            self._ready.append(current)
        flight.line = deque(message for message in waiting if message is not current)

    # --- pauses

    def pause(self, topics: Sequence[str]) -> None:
        """Deliver nothing of these topics, or of all if there are none."""
        self._paused.update(topics)
        self._is_paused |= not topics

    def resume(self, topics: Sequence[str]) -> None:
        """Undo `pause` for these topics, or for all."""
        if not topics:
            self._paused.clear()
            self._is_paused = False
        self._paused.difference_update(topics)
        self._ready.extendleft(reversed(self._paused_messages))
        self._paused_messages = []

    def may_fetch(self, flight: QueueFlight) -> bool:
        """Return whether messages of a queue are wanted now."""
        return not self._is_paused and flight.topic not in self._paused and flight.room > 0

    def _keep_if_paused(self, message: HandedMessage) -> bool:
        is_paused = self._is_paused or message.topic in self._paused
        if is_paused:
            self._paused_messages.append(message)
        return is_paused

    # --- queues that go

    def leave(self, flight: QueueFlight) -> None:
        """Deliver nothing more of a queue."""
        flight.is_leaving = True
        for message in flight.open.values():
            if message.state == READY:
                message.state = OVER
        flight.line.clear()

    def drop(self, flight: QueueFlight, *, lost: bool) -> None:
        """Forget a queue's messages: it was given back (`lost`), or is read from elsewhere."""
        flight.is_over, flight.is_lost = True, lost
        # The base stays what it was.
        flight.fetched = flight.base
        for message in flight.open.values():
            self._end(message)
        flight.open.clear()
        flight.line.clear()
        self._ready = deque(each for each in self._ready if each.state == READY)
        self._paused_messages = [each for each in self._paused_messages if each.state == READY]

    def delivered_to(self, by: object) -> Iterator[HandedMessage]:
        """Return the messages that one iteration has delivered."""
        return (each for each in list(self.out) if each.by is by)


def _offset(message: HandedMessage) -> int:
    return message.offset
