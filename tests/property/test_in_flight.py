"""What is in flight, against a model that only knows which messages are done and which are out."""

from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.lanes import examples

from penstock_messaging.consuming.consumed_message import BOUND, OUT, HandedMessage
from penstock_messaging.consuming.in_flight import InFlight, QueueFlight, StartPosition

WAIT_NS, MOST, QUEUES = 10, 4, 2
TOPICS = ("a", "b")


@attrs.frozen
class Stored:
    queue_offset: int
    reconsume_times: int = 0


@attrs.frozen
class Owned:
    topic: str
    queue: int


@attrs.define(eq=False)
class ModelQueue:
    """What is true of a queue, whatever its consumer has fetched."""

    key: tuple[str, int]
    end: int = 0
    done: set[int] = attrs.Factory(set)
    # Offset to the delivery that is out, and until when.
    out: dict[int, tuple[HandedMessage, int]] = attrs.Factory(dict)
    tries: dict[int, int] = attrs.Factory(dict)
    # With `ordered`: no message before this time.
    not_before: int = 0


class InFlightMachine(RuleBasedStateMachine):
    ordered = False

    @initialize()
    def begin(self) -> None:
        self.now = 0
        self.flight = InFlight(ack_wait_ns=WAIT_NS, out_max=MOST, ordered=self.ordered)
        self.paused: set[str] = set()
        self.all_given: list[tuple[ModelQueue, HandedMessage, QueueFlight]] = []
        self.queues = [ModelQueue((topic, n)) for topic in TOPICS for n in range(QUEUES)]
        self.flights = {queue.key: self._flight_of(queue) for queue in self.queues}

    def _flight_of(self, queue: ModelQueue) -> QueueFlight:
        base = min((n for n in range(queue.end) if n not in queue.done), default=queue.end)
        ranges = [(n, n + 1) for n in sorted(queue.done) if n >= base]
        position = StartPosition(base, ranges, (), dict(queue.tries))
        consumer: Any = None
        owned: Any = Owned(*queue.key)
        return QueueFlight(consumer, owned, position, is_retry=False)

    # --- messages come, and are handed out

    @rule(at=st.integers(0, 3), count=st.integers(1, 5))
    def put(self, at: int, count: int) -> None:
        self.queues[at].end += count

    @rule(at=st.integers(0, 3), limit=st.integers(1, 8))
    def fetch(self, at: int, limit: int) -> None:
        queue = self.queues[at]
        flight = self.flights[queue.key]
        if self.flight.may_fetch(flight):
            first = flight.fetched
            stop = min(first + limit, queue.end)
            found: Any = [Stored(offset) for offset in range(first, stop)]
            self.flight.add(flight, found, max(stop, first))

    @rule(limit=st.integers(1, 6))
    def take(self, limit: int) -> None:
        for queue in self.queues:
            queue.out = {k: v for k, v in queue.out.items() if v[1] > self.now}
        for message in self.flight.take(limit, self.now):
            queue = self._queue_of(message)
            assert message.topic not in self.paused
            assert message.offset < queue.end
            assert message.offset not in queue.done, "handed out although it is done"
            assert message.offset not in queue.out, "handed out while it is out"
            assert message.attempt == queue.tries.get(message.offset, 0) + 1
            if self.ordered:
                assert not queue.out
                assert self.now >= queue.not_before
                assert all(n in queue.done for n in range(message.offset)), "out of order"
            queue.out[message.offset] = (message, self.now + WAIT_NS)
            self.all_given.append((queue, message, message.flight))

    def _queue_of(self, message: HandedMessage) -> ModelQueue:
        return self.queues[TOPICS.index(message.flight.topic) * QUEUES + message.flight.queue]

    @rule(ns=st.integers(1, 12))
    def wait(self, ns: int) -> None:
        self.now += ns

    # --- answers, also late ones

    def _pick(self, number: int) -> tuple[ModelQueue, HandedMessage] | None:
        """Return a delivery of a queue's current life, old or new."""
        given = [each for each in self.all_given if self.flights[each[0].key] is each[2]]
        return given[number % len(given)][:2] if given else None

    @precondition(lambda self: self.all_given)
    @rule(number=st.integers(0, 1000))
    def ack(self, number: int) -> None:
        picked = self._pick(number)
        if picked is not None:
            queue, message = picked
            was_done = message.offset in queue.done
            assert self.flight.finish(message) != was_done
            if not was_done:
                # Also a late answer to a message that waits for its retry: the queue goes on.
                queue.not_before = 0
            queue.done.add(message.offset)
            queue.out.pop(message.offset, None)

    @precondition(lambda self: self.all_given)
    @rule(number=st.integers(0, 1000))
    def release(self, number: int) -> None:
        picked = self._pick(number)
        if picked is not None:
            queue, message = picked
            self.flight.release([message])
            if queue.out.get(message.offset, (None, 0))[0] is message:
                del queue.out[message.offset]

    @precondition(lambda self: self.all_given)
    @rule(number=st.integers(0, 1000))
    def extend(self, number: int) -> None:
        picked = self._pick(number)
        if picked is not None:
            queue, message = picked
            self.flight.expire(self.now)
            self.flight.extend(message, self.now)
            held, until = queue.out.get(message.offset, (None, 0))
            if held is message and until > self.now:
                queue.out[message.offset] = (message, self.now + WAIT_NS)

    @precondition(lambda self: self.all_given and self.ordered)
    @rule(number=st.integers(0, 1000), pause=st.integers(1, 20))
    def refuse(self, number: int, pause: int) -> None:
        picked = self._pick(number)
        if picked is None or not self.flight.is_current(picked[1]):
            return
        queue, message = picked
        self.flight.retry_at(message, self.now + pause)
        queue.tries[message.offset] = message.attempt
        queue.out.pop(message.offset, None)
        queue.not_before = self.now + pause

    # --- pauses, and queues that go

    @rule(topic=st.sampled_from(TOPICS))
    def pause(self, topic: str) -> None:
        self.flight.pause([topic])
        self.paused.add(topic)

    @rule()
    def resume(self) -> None:
        self.flight.resume(())
        self.paused.clear()

    @rule(at=st.integers(0, 3))
    def give_back_and_take_again(self, at: int) -> None:
        queue = self.queues[at]
        self.flight.leave(self.flights[queue.key])
        self.flight.drop(self.flights[queue.key], lost=True)
        assert not self.flight.has_out(self.flights[queue.key])
        queue.out.clear()
        queue.not_before = 0
        self.flights[queue.key] = self._flight_of(queue)

    @rule(at=st.integers(0, 3), share=st.floats(0, 1))
    def seek(self, at: int, share: float) -> None:
        queue = self.queues[at]
        offset = int(queue.end * share)
        self.flight.drop(self.flights[queue.key], lost=False)
        queue.done, queue.tries, queue.not_before = set(range(offset)), {}, 0
        queue.out.clear()
        self.flights[queue.key] = self._flight_of(queue)

    @rule()
    def mend(self) -> None:
        """Nothing was interrupted, so there is nothing to mend."""
        fetched = {key: flight.fetched for key, flight in self.flights.items()}
        assert not self.flight.mend(self.flights.values(), self.now)
        assert fetched == {key: flight.fetched for key, flight in self.flights.items()}

    # --- what always holds

    @invariant()
    def the_base_is_below_what_is_not_done(self) -> None:
        for queue in getattr(self, "queues", ()):
            flight = self.flights[queue.key]
            assert set(range(flight.base)) <= queue.done
            assert flight.open.keys() >= {
                each.offset for each in self.flight.out if each.flight is flight
            }

    @invariant()
    def no_more_is_out_than_may_be(self) -> None:
        if hasattr(self, "flight"):
            assert len(self.flight.out) <= MOST

    def teardown(self) -> None:
        """Every message that is not done is handed out, once and for all."""
        if not hasattr(self, "flight"):
            return
        self.resume()
        for _ in range(sum(each.end for each in self.queues) + 1):
            self.now += 100
            for at in range(len(self.queues)):
                self.fetch(at, 8)
            self.take(MOST)
            for queue in self.queues:
                given = [message for message, _ in queue.out.values()]
                self.flight.finish_all(self.flights[queue.key], given)
                for message in given:
                    queue.done.add(message.offset)
                    del queue.out[message.offset]
        assert all(queue.done >= set(range(queue.end)) for queue in self.queues)
        assert all(self.flights[queue.key].base == queue.end for queue in self.queues)


class OrderedMachine(InFlightMachine):
    ordered = True


TestInFlight = InFlightMachine.TestCase
TestOrdered = OrderedMachine.TestCase
TestInFlight.settings = TestOrdered.settings = settings(
    max_examples=examples(100), stateful_step_count=60, deadline=None
)


# --- bound to a transaction, and interrupted


def two_out() -> tuple[InFlight, QueueFlight, Any, Any]:
    """Return what is in flight, the queue, and two messages that are handed out."""
    consumer: Any = None
    owned: Any = Owned("orders", 0)
    stored: Any = [Stored(0), Stored(1)]
    in_flight = InFlight(ack_wait_ns=10, out_max=2)
    flight = QueueFlight(consumer, owned, StartPosition(0), is_retry=False)
    in_flight.add(flight, stored, 2)
    first, second = in_flight.take(2, 0)
    return in_flight, flight, first, second


def held() -> object:
    """Return a transaction that has not ended."""
    return held


def test_an_interrupt_between_the_steps_of_binding_is_completed() -> None:
    in_flight, flight, first, second = two_out()
    # As if `bind` was interrupted after the state, and `give_back` before it.
    first.state = BOUND
    in_flight.bind(second, held)
    del in_flight.bound[second]
    second.state = OUT
    in_flight.mend([flight], 5)
    # Nothing holds the first one: its transaction never got it.
    assert (list(in_flight.bound), list(in_flight.out)) == ([], [second, first])
    in_flight.finish(first)
    in_flight.finish(second)
    assert (flight.base, in_flight.out, in_flight.bound) == (2, {}, {})


def test_what_a_transaction_that_is_gone_has_bound_is_given_back() -> None:
    in_flight, flight, first, second = two_out()
    transactions: list[object] = [held]
    in_flight.bind(first, lambda: transactions[0])
    in_flight.bind(second, held)
    in_flight.give_back(first, 1, held)
    in_flight.mend([flight], 5)
    assert list(in_flight.bound) == [first, second]
    transactions[0] = None
    in_flight.mend([flight], 5)
    assert (list(in_flight.bound), in_flight.out, first.state) == ([second], {first: 15}, OUT)
