"""What a transaction acknowledges: held until its end, recorded or given back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.consumers import Members

import penstock
from penstock import ArgumentError, ArgumentTypeError, LostQueueError, Message, Store
from penstock.contracts.open_store import OpenStore
from penstock.errors import AlreadyAnsweredError, ConsumerClosedError
from penstock.testing import ManualClock
from penstock_messaging.consuming.consumed_message import BOUND, DONE, OUT
from penstock_messaging.consuming.held_acks import HeldAcks
from penstock_messaging.extension import MessagingExtension


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a store with two messages in each of three queues."""
    with penstock.open(tmp_path / "store") as opened:
        opened.put_many([Message("orders", b"x", queue=n % 3) for n in range(6)])
        yield opened


def inner(store: Store) -> OpenStore:
    """Return the store as its extension, and so its consumers, have it."""
    return cast(MessagingExtension, store.extension("messaging")).store


def test_no_other_answer_is_taken_and_no_time_ends_what_is_held(store: Store) -> None:
    clock = ManualClock()
    members = Members(store, clock)
    with members(ack_wait=10) as consumer:
        first, second, *_ = given = consumer.poll(6)
        held = HeldAcks(store)
        held.add(first)
        for answer in (consumer.ack, consumer.nack, consumer.release, consumer.begin_ack, held.add):
            for messages in (first, [second, first]):
                with pytest.raises(AlreadyAnsweredError, match="a transaction acknowledges it"):
                    answer(messages)
        with pytest.raises(AlreadyAnsweredError):
            consumer.ack(first, sync=False)
        assert [each.state for each in given] == [BOUND, *[OUT] * 5]
        clock.now_ms += 60_000
        members.workers.run_all()
        assert first.state == BOUND
        assert first not in consumer.poll(6, 0)
        assert len(held) == 1


def test_it_is_given_back_as_it_was(store: Store) -> None:
    members = Members(store)
    with members() as consumer:
        given = consumer.poll(6)
        held = HeldAcks(store)
        held.add(given)
        assert len(consumer.pending()) == 6
        held.give_back()
        assert {each.state for each in given} == {OUT}
        consumer.ack(given)
        assert {each.state for each in given} == {DONE}
    assert sorted(members.journal(queue=0).acked) == [0, 1]


def test_it_counts_against_what_may_be_handed_out(store: Store) -> None:
    with Members(store)(max_in_flight=2) as consumer:
        held = HeldAcks(store)
        held.add(consumer.poll(2))
        assert not consumer.poll(1, 0)
        held.record()
        assert len(consumer.poll(6, 0)) == 2
        held.give_back()
        assert not consumer.poll(1, 0)


def test_what_is_recorded_is_done(store: Store) -> None:
    members = Members(store)
    with members() as consumer:
        held = HeldAcks(store)
        held.add(consumer.poll(6))
        acks = held.acks()
        assert sorted((each.acks.queue, each.acks.offsets) for each in acks) == [
            (queue, [0, 1]) for queue in range(3)
        ]
        waits, failures = held.record()
        for wait in waits:
            wait()
        assert not failures
        assert len(waits) == 3
        assert not consumer.lag() or not sum(consumer.lag().values())


def test_a_lost_queue_is_told_before_anything_is_recorded(store: Store) -> None:
    members = Members(store)
    with members() as consumer:
        held = HeldAcks(store)
        held.add(consumer.poll(6))
        members.journal(queue=1).owner.lose()
        with pytest.raises(LostQueueError):
            held.acks()
        consumer._held.lose(next(each for each in consumer._fetcher.queues if each.queue == 1))
        waits, failures = held.record()
        assert (len(waits), [type(each) for each in failures]) == (2, [LostQueueError])


def test_a_message_that_was_handed_out_again_is_not_held(store: Store) -> None:
    members = Members(store)
    with members("orders", ordered=True) as consumer:
        (message,) = consumer.poll(1)
        consumer.release(message)
        again = consumer.poll(3)
        held = HeldAcks(store)
        with pytest.raises(AlreadyAnsweredError):
            held.add([*again, message])
        assert {each.state for each in again} == {OUT}
        consumer.release(again[0])
        # Nobody else has it yet.
        held.add(again[0])
        held.record()
        assert again[0].state == DONE


@pytest.mark.parametrize("given", [None, 5, "text", b"text", [None], ["m"]])
def test_anything_else_is_refused(given: Any, store: Store) -> None:
    with pytest.raises(ArgumentTypeError, match="a consumer of this store"):
        HeldAcks(store).add(given)


def test_messages_of_others_are_refused(store: Store, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store", read_only=True) as other:
        with other.consumer("g", "orders") as consumer:
            (message,) = consumer.poll(1)
            with pytest.raises(ArgumentError, match="not of another one"):
                HeldAcks(inner(store)).add(message)
        with pytest.raises(ArgumentError):
            HeldAcks(inner(store)).add(message)
    with store.consumer("h", "orders", broadcast=True, start="earliest") as consumer:
        (message,) = consumer.poll(1, 5)
        with pytest.raises(ArgumentError, match="broadcast"):
            HeldAcks(inner(store)).add(message)


def test_messages_of_several_consumers_are_held_all_or_none(store: Store) -> None:
    with store.consumer("g", "orders") as first, store.consumer("h", "orders") as second:
        some, others = first.poll(2), second.poll(2)
        held = HeldAcks(inner(store))
        second.close()
        with pytest.raises((ConsumerClosedError, LostQueueError)):
            held.add([*some, *others])
        first.ack(some)
