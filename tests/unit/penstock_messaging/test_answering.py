"""Answers of consumers: recorded once, durable when the call returns, and held for a transaction until its end."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.consumers import Members, bodies, poll, put

import penstock
from penstock import ArgumentError, ArgumentTypeError, LostQueueError, Message, StorageError, Store
from penstock.contracts.extension import OpenStore
from penstock.errors import AlreadyAnsweredError, ConsumerClosedError
from penstock_messaging.consuming.consumed_message import BOUND, DONE, OUT
from penstock_messaging.consuming.transaction_acks import TransactionAcks
from penstock_messaging.extension import MessagingExtension


def fails(error: Exception, first: Callable[[], object] = lambda: None) -> Callable[..., Any]:
    """Return what fails, after doing something else."""

    def call(*_given: object) -> None:
        first()
        raise error

    return call


# --- acknowledged


def test_an_acknowledgement_is_recorded_once_and_synced_before_it_returns(members: Members) -> None:
    put(members, 5)
    journal = members.group.journals
    with members() as consumer:
        first, second, third, fourth, _ = poll(consumer)
        second.ack()
        assert journal["orders", 0].synced == journal["orders", 0].records == 1
        consumer.ack([third, first], sync=False)
        assert journal["orders", 0].synced == 1
        # Also if it was acknowledged before without a sync.
        third.ack()
        assert journal["orders", 0].synced == 2
        consumer.ack(fourth, sync=False)
        assert journal["orders", 0].synced == 2
        members.workers.run_all()
        assert journal["orders", 0].synced > 2
    assert members.journal().ack_calls == [(1,), (0, 2), (3,)]
    with members() as consumer:
        assert bodies(poll(consumer)) == [b"4"]


def test_an_answer_after_the_first_does_nothing_and_a_refusal_is_an_error(members: Members) -> None:
    put(members, 3)
    with members() as consumer:
        acked, refused, released = poll(consumer)
        acked.ack()
        refused.nack()
        released.release()
        for message, why in ((acked, "it was acknowledged"), (refused, "it was nacked")):
            with pytest.raises(AlreadyAnsweredError, match=why):
                message.nack()
            message.release()
            message.extend()
        acked.ack()
        for again in (refused.ack, lambda: consumer.ack([acked, refused])):
            with pytest.raises(AlreadyAnsweredError, match="it was nacked before"):
                again()
        assert members.journal().acked == {0}
        assert members.journal().nacked.keys() == {1}
        assert consumer.pending() == []
        assert bodies(poll(consumer)) == [b"2"]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_an_answer_that_was_given_before_the_close_is_no_error_after_it(
    sync: bool, many: bool, store: Store
) -> None:
    """It said that the message may be handed out again, although its acknowledgement was durable."""
    store.put_many([Message("orders", b"x", queue=0)] * 3)
    with store.consumer("billing", ["orders"]) as consumer:
        acked, refused, left = consumer.poll(3)
        acked.ack(sync=sync)
        refused.nack()
    given = [acked, refused] if many else acked
    for answer in (consumer.ack, consumer.nack):
        answer(given)
    consumer.ack(given, sync=False)
    for answer in (consumer.ack, consumer.nack):
        with pytest.raises(LostQueueError, match="may be redelivered"):
            answer([acked, left] if many else left)


# --- what is no answer


def test_an_answer_to_what_is_no_message_of_this_consumer_is_refused(members: Members) -> None:
    put(members, 1)
    with members() as consumer, members() as other:
        (message,) = poll(consumer)
        for call in (other.ack, other.nack, other.release, other.extend):
            for wrong in (message, [message.stored], "orders", "", b"", 5, None):
                with pytest.raises(ArgumentError, match=r"messages.*this consumer has delivered"):
                    call(cast(Any, wrong))
        with pytest.raises(ArgumentError, match=r"delay .* to 7200 s"):
            consumer.nack(message, delay=7201)


# --- queues that cannot be written


@pytest.mark.parametrize("answer", ["ack", "nack"])
@pytest.mark.parametrize("call", ["record", "sync"])
@pytest.mark.parametrize("kind", [LostQueueError, StorageError])
def test_one_queue_that_fails_does_not_keep_the_answers_of_others_from_being_durable(
    kind: type[Exception], call: str, answer: str, members: Members
) -> None:
    """The first failure ended the call: the messages of later queues had no answer, or one that was not on disk."""
    put(members, 6, queues=3)
    with members() as consumer:
        messages = poll(consumer)
        broken: Any = members.journal(queue=0).owner
        setattr(broken, answer if call == "record" else "sync", fails(kind("orders", 0)))
        with pytest.raises(kind):
            getattr(consumer, answer)(messages)
        for queue in (1, 2):
            journal = members.journal(queue=queue)
            assert journal.acked | set(journal.nacked) == {0, 1}
            assert journal.synced == journal.records
        assert not [each for each in consumer.pending() if each.queue]


@pytest.mark.parametrize("call", ["advance", "sync"])
def test_a_full_disk_is_noted_and_the_consumer_goes_on(
    call: str, members: Members, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the consumer for good, and the acknowledgements of other queues were never synced."""
    put(members, 9, queues=3)
    with members() as consumer:
        consumer.ack(poll(consumer), sync=False)
        with monkeypatch.context() as patch:
            patch.setattr(members.journal().owner, call, fails(StorageError("no space left")))
            members.workers.run_all()
            members.workers.run_all()
        assert caplog.text.count("no space left") == 1
        assert [members.journal(queue=n).synced > 0 for n in (1, 2)] == [True, True]
        members.workers.run_all()
        assert members.journal().base == 3
        members.store.put("orders", b"more", queue=0)
        consumer.poll(1, 5)[0].ack()
        assert 3 in members.journal().acked
        # A lost queue is given back, and keeps the answers to others from nothing.
        put(members, 3, queues=3)
        consumer.ack(poll(consumer), sync=False)
        journals = [members.journal(queue=n) for n in range(3)]
        records, lost = [each.records for each in journals], journals[0].owner
        lost.sync = fails(LostQueueError("orders", 0))
        members.workers.run_all()
        synced = [each.synced >= count for each, count in zip(journals, records, strict=True)]
        assert synced == [False, True, True]
        members.workers.run_all()
        assert lost.is_back


def test_a_queue_that_is_given_back_while_the_disk_fails_does_not_end_the_consumer(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    put(members, 9, queues=3)
    consumer = members()
    failing: Any = members.journal(queue=1).owner
    failing.hand_back = fails(StorageError("the disk fails"), failing.hand_back)
    failing.lose()
    members.workers.run_all()
    assert "the disk fails" in caplog.text
    assert failing.is_back
    members.workers.run_all()
    assert len(consumer.assignment()) == 3
    assert poll(consumer, 1)
    # All are given back before an error of one is raised.
    failing = members.journal(queue=1).owner
    failing.hand_back = fails(OSError(errno.EIO, "the disk fails"), failing.hand_back)
    claims = members.group.members[0]
    with pytest.raises(OSError, match="the disk fails"):
        consumer.close()
    assert [members.journal(queue=n).owner for n in range(3)] == [None, None, None]
    assert members.group.members == []
    # So is one that is taken after the close.
    members.group.members.append(claims)
    claims.step()
    assert [members.journal(queue=n).owner for n in range(3)] == [None, None, None]
    assert consumer.assignment() == []


# --- held for a transaction


def test_no_other_answer_is_taken_and_no_time_ends_what_is_held(members: Members) -> None:
    put(members, 6, queues=3)
    with members(ack_wait=10) as consumer:
        first, second, *_ = given = poll(consumer)
        held = TransactionAcks(members.store.lowlevel)
        held.add(first)
        for answer in (consumer.ack, consumer.nack, consumer.release, consumer.begin_ack, held.add):
            for messages in (first, [second, first]):
                with pytest.raises(AlreadyAnsweredError, match="a transaction acknowledges it"):
                    answer(messages)
        with pytest.raises(AlreadyAnsweredError):
            consumer.ack(first, sync=False)
        assert [each.state for each in given] == [BOUND, *[OUT] * 5]
        members.clock.now_ms += 60_000
        members.workers.run_all()
        assert first.state == BOUND
        assert first not in poll(consumer)
        assert len(consumer.pending()) == 6
        held.give_back()
        assert first.state == OUT
        first.ack()
        assert first.state == DONE


def test_what_is_held_counts_as_out_until_it_is_recorded(members: Members) -> None:
    put(members, 6, queues=3)
    with members(max_in_flight=2) as consumer:
        held = TransactionAcks(members.store.lowlevel)
        held.add(poll(consumer))
        assert (len(held), poll(consumer)) == (2, [])
        acks = [(each.acks.queue, each.acks.offsets) for each in held.acks()]
        assert acks == [(0, [0, 1])]
        waits, failures = held.record()
        for wait in waits:
            wait()
        assert (len(waits), failures) == (1, [])
        assert members.journal().synced == members.journal().records
        given = poll(consumer)
        assert len(given) == 2
        held.give_back()
        assert poll(consumer) == []
        # A lost queue is told before anything of it is recorded.
        held = TransactionAcks(members.store.lowlevel)
        held.add(given)
        members.journal(queue=given[0].queue).owner.lose()
        with pytest.raises(LostQueueError):
            held.acks()
        assert [type(each) for each in held.record()[1]] == [LostQueueError]


def test_a_message_that_was_handed_out_again_is_not_held(members: Members) -> None:
    put(members, 2)
    with members(ordered=True) as consumer:
        (message,) = poll(consumer)
        consumer.release(message)
        again = poll(consumer)
        held = TransactionAcks(members.store.lowlevel)
        with pytest.raises(AlreadyAnsweredError):
            held.add([*again, message])
        assert {each.state for each in again} == {OUT}
        consumer.release(again[0])
        # Nobody else has it yet.
        held.add(again[0])
        held.record()
        assert again[0].state == DONE


def test_messages_of_other_stores_and_consumers_are_refused(store: Store, tmp_path: Path) -> None:
    store.put_many([Message("orders", b"x", queue=n % 3) for n in range(6)])
    # As its extension, and so its consumers, have it.
    inner: OpenStore = cast(MessagingExtension, store.lowlevel.extension("messaging")).store
    for wrong in (None, 5, "text", b"text", [None], ["m"]):
        with pytest.raises(ArgumentTypeError, match="a consumer of this store"):
            TransactionAcks(inner).add(cast(Any, wrong))
    with penstock.open(store.path, read_only=True) as other:
        with other.consumer("g", "orders") as consumer:
            (message,) = consumer.poll(1)
            with pytest.raises(ArgumentError, match="not of another one"):
                TransactionAcks(inner).add(message)
        with pytest.raises(ArgumentError):
            TransactionAcks(inner).add(message)
    with store.consumer("h", "orders", broadcast=True, start="earliest") as consumer:
        (message,) = consumer.poll(1, 5)
        with pytest.raises(ArgumentError, match="broadcast"):
            TransactionAcks(inner).add(message)
    with store.consumer("g", "orders") as first, store.consumer("h", "orders") as second:
        some, others = first.poll(2), second.poll(2)
        second.close()
        with pytest.raises((ConsumerClosedError, LostQueueError)):
            TransactionAcks(inner).add([*some, *others])
        first.ack(some)
