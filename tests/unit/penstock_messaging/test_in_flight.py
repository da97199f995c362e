"""What is in flight; `tests/property/test_in_flight.py` compares it with a model."""

from typing import Any

from tests.property.test_in_flight import Owned, Stored

from penstock_messaging.consuming.consumed_message import BOUND, DONE, OUT, OVER
from penstock_messaging.consuming.in_flight import SPAN_MAX, InFlight, QueueFlight, StartPosition

NONE: Any = None


def flight_of(position: StartPosition = StartPosition(0)) -> QueueFlight:  # noqa: B008 - a constant
    owned: Any = Owned("orders", 0)
    return QueueFlight(NONE, owned, position, is_retry=False)


def stored(*offsets: int) -> Any:
    return [Stored(each) for each in offsets]


def test_what_is_done_ahead_is_passed_over() -> None:
    flight = flight_of(StartPosition(2, [(2, 4), (6, 8)], [9], {5: 3}))
    assert (flight.base, flight.fetched, flight.done_ahead) == (4, 4, 3)
    made = flight.accept(stored(4, 5, 6, 7, 8, 9, 10), 11)
    assert [each.offset for each in made] == [4, 5, 8, 10]
    assert [each.attempt for each in made] == [1, 4, 1, 1]
    assert (flight.base, flight.fetched, flight.done_ahead) == (4, 11, 0)


def test_the_base_passes_what_the_filter_excludes() -> None:
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=10), flight_of()
    in_flight.add(flight, stored(3), 800)
    assert flight.base == 3
    (message,) = in_flight.take(1, 0)
    assert in_flight.finish(message)
    assert not in_flight.finish(message)
    assert (flight.base, flight.room) == (800, SPAN_MAX)


def test_an_interrupt_between_the_steps_of_fetching_leaves_nothing_behind_the_base() -> None:
    flight = flight_of()
    flight.open.update((each, NONE) for each in (0, 1))
    # As if `accept` was interrupted here: what is fetched was not moved.
    assert (flight.base, flight.fetched) == (0, 0)
    flight.accept(stored(0, 1), 2)
    assert (flight.base, flight.fetched, len(flight.open)) == (0, 2, 2)


def test_when_something_is_due() -> None:
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=10), flight_of()
    in_flight.add(flight, stored(0, 1), 2)
    assert in_flight.due_ns() is None
    first, second = [*in_flight.take(1, 5), *in_flight.take(1, 7)]
    assert in_flight.due_ns() == 15
    in_flight.extend(first, 8)
    assert in_flight.due_ns() == 17
    assert not in_flight.expire(16)
    assert in_flight.expire(17)
    assert [each.offset for each in in_flight.take(5, 17)] == [second.offset]
    assert in_flight.due_ns() == 18


def test_what_is_added_to_an_ordered_queue_waits_for_the_message_before() -> None:
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=10, ordered=True), flight_of()
    assert in_flight.add(flight, stored(), 0) == 0
    in_flight.add(flight, stored(0), 1)
    (first,) = in_flight.take(5, 0)
    in_flight.add(flight, stored(1), 2)
    in_flight.add(flight, stored(2), 3)
    assert in_flight.take(5, 0) == []
    in_flight.finish(first)
    assert [each.offset for each in in_flight.take(5, 0)] == [1]


def held() -> object:
    """Return a transaction that has not ended."""
    return held


def test_a_bound_message_is_neither_handed_out_nor_over() -> None:
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=2), flight_of()
    in_flight.add(flight, stored(0, 1, 2), 3)
    first, second = in_flight.take(2, 0)
    assert in_flight.bind(first, held)
    assert not in_flight.bind(first, held)
    assert in_flight.is_bound(first)
    assert in_flight.has_out(flight)
    # Only the other one comes again, and there is no room for a third.
    assert in_flight.expire(100)
    assert [each.offset for each in in_flight.take(3, 100)] == [1]
    assert flight.base == 0
    in_flight.give_back(first, 100, held)
    in_flight.give_back(first, 100, held)
    assert (first.state, in_flight.out[first], in_flight.is_full) == (OUT, 110, True)
    assert in_flight.bind(first, held)
    in_flight.finish_bound(first)
    in_flight.finish_bound(first)
    assert (first.state, flight.base, in_flight.bound) == (DONE, 1, {})
    assert not in_flight.bind(second, held), "it was handed out again"


def test_a_queue_that_goes_ends_what_is_bound() -> None:
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=2), flight_of()
    in_flight.add(flight, stored(0), 1)
    (message,) = in_flight.take(1, 0)
    in_flight.bind(message, held)
    in_flight.leave(flight)
    assert in_flight.has_out(flight)
    in_flight.drop(flight, lost=True)
    assert (message.state, in_flight.bound) == (OVER, {})
    in_flight.finish_bound(message)
    in_flight.give_back(message, 0, held)
    assert not in_flight.out


def test_an_interrupt_between_the_steps_of_binding_is_completed() -> None:
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=2), flight_of()
    in_flight.add(flight, stored(0, 1), 2)
    first, second = in_flight.take(2, 0)
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
    in_flight, flight = InFlight(ack_wait_ns=10, out_max=2), flight_of()
    in_flight.add(flight, stored(0, 1), 2)
    first, second = in_flight.take(2, 0)
    transactions: list[object] = [held]
    in_flight.bind(first, lambda: transactions[0])
    in_flight.bind(second, held)
    in_flight.give_back(first, 1, held)
    in_flight.mend([flight], 5)
    assert list(in_flight.bound) == [first, second]
    transactions[0] = None
    in_flight.mend([flight], 5)
    assert (list(in_flight.bound), in_flight.out, first.state) == ([second], {first: 15}, OUT)
