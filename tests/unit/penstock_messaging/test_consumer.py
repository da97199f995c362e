"""Consumers: what is handed out, when it is handed out again, and what becomes of answers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import Members, bodies

import penstock
from penstock import (
    ArgumentError,
    ConsumerClosedError,
    ForkedStoreError,
    LostQueueError,
    Message,
)
from penstock.contracts import Consumer
from penstock.runtime.clock import Clock
from penstock.runtime.workers import WorkerGroup
from penstock.store.store import Store
from penstock_messaging.consuming.consumer import STEP_S, GroupConsumer
from penstock_messaging.consuming.in_flight import SPAN_MAX
from penstock_messaging.consuming.queue_rights import GROUP_TRIES


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def members(store: Store) -> Members:
    return Members(store)


def put(store: Store, count: int, topic: str = "orders", queues: int = 1, **more: Any) -> None:
    if count:
        store.put_many([Message(topic, b"%d" % n, queue=n % queues, **more) for n in range(count)])


def poll(consumer: GroupConsumer, limit: int = 100) -> list[Any]:
    return consumer.poll(limit, timeout=0)


def test_it_is_a_consumer(store: Store, members: Members) -> None:
    with members() as consumer:
        typed: Consumer = consumer
        assert typed.assignment() == []


@pytest.mark.parametrize("wrong", ["", "text", b"", 5, None])
def test_an_answer_to_what_is_no_message_is_refused(
    store: Store, members: Members, wrong: Any
) -> None:
    with members() as consumer:
        for answer in (consumer.ack, consumer.nack, consumer.release, consumer.extend):
            with pytest.raises(penstock.ArgumentTypeError, match="messages"):
                answer(wrong)


def test_messages_are_handed_out_once_in_the_order_of_their_queue(
    store: Store, members: Members
) -> None:
    put(store, 100)
    with members() as consumer:
        assert bodies(poll(consumer, 40)) == [b"%d" % n for n in range(40)]
        assert bodies(poll(consumer)) == [b"%d" % n for n in range(40, 100)]
        assert poll(consumer) == []


def test_a_message_has_what_a_stored_message_has(store: Store, members: Members) -> None:
    store.put("orders", b"x", tag="paid", keys=["A-1", "A-2"], properties={"a": "b"}, flag=7)
    with members() as consumer:
        (message,) = poll(consumer)
        stored = message.stored
        assert (message.topic, message.queue, message.queue_offset) == ("orders", 0, 0)
        assert (message.tag, message.keys, message.properties) == (
            "paid",
            ("A-1", "A-2"),
            {"a": "b"},
        )
        assert (message.flag, message.message_id, message.attempt) == (7, stored.message_id, 1)
        assert "orders" in repr(message)
        with pytest.raises(AttributeError):
            message.nothing  # noqa: B018 - it raises


def test_an_acknowledged_message_does_not_come_again(store: Store, members: Members) -> None:
    put(store, 4)
    with members() as consumer:
        first, second, third, _ = poll(consumer)
        second.ack()
        consumer.ack([third, first])
    assert members.journal().ack_calls == [(1,), (0, 2)]
    with members() as consumer:
        assert bodies(poll(consumer)) == [b"3"]


def test_an_acknowledgement_is_synced_before_ack_returns(store: Store, members: Members) -> None:
    put(store, 2)
    with members() as consumer:
        first, second = poll(consumer)
        consumer.ack(first)
        assert members.journal().synced == members.journal().records == 1
        consumer.ack(second, sync=False)
        assert members.journal().synced == 1
        # Also if it was acknowledged before without a sync.
        second.ack()
        assert members.journal().synced == 2


def test_while_an_answer_waits_for_the_disk_the_next_messages_are_read(
    store: Store, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 150)
    with members() as consumer:
        steps: list[int] = []
        reads: list[Any] = []
        read = store.read
        monkeypatch.setattr(consumer._claims, "step", lambda: steps.append(1))

        def counted(*given: Any) -> Any:
            reads.append(given[2])
            return read(*given)

        monkeypatch.setattr(store, "read", counted)
        step = members.workers.by_name["penstock-consumer-billing"].step
        step()
        steps.clear()
        messages = poll(consumer, 100)
        consumer.ack(messages[:1], sync=False)
        assert reads == [0]
        consumer.ack(messages[1:])
        pause_s = step()
        assert pause_s is not None
        assert 0 < pause_s <= STEP_S
        # Members and queues are looked for at the usual times only.
        assert (reads[:2], steps) == ([0, 100], [])
        assert bodies(consumer.take(100)) == [b"%d" % n for n in range(100, 150)]


def test_acknowledgements_without_sync_are_synced_at_the_next_step(
    store: Store, members: Members
) -> None:
    put(store, 1)
    with members() as consumer:
        consumer.ack(poll(consumer), sync=False)
        assert members.journal().synced == 0
        members.workers.run_all()
        assert members.journal().synced > 0


def test_what_is_not_answered_is_handed_out_again_after_ack_wait(
    store: Store, members: Members
) -> None:
    put(store, 3)
    with members(ack_wait=10) as consumer:
        poll(consumer, 2)
        members.clock.now_ms += 9_999
        assert bodies(poll(consumer)) == [b"2"]
        members.clock.now_ms += 1
        again = poll(consumer)
        assert bodies(again) == [b"0", b"1"]
        assert [each.attempt for each in again] == [1, 1]


def test_extend_restarts_ack_wait(store: Store, members: Members) -> None:
    put(store, 2)
    with members(ack_wait=10) as consumer:
        first, _ = poll(consumer)
        members.clock.now_ms += 6_000
        first.extend()
        members.clock.now_ms += 6_000
        assert bodies(poll(consumer)) == [b"1"]
        members.clock.now_ms += 4_000
        assert bodies(poll(consumer)) == [b"0"]


def test_acknowledging_an_expired_delivery_counts(store: Store, members: Members) -> None:
    put(store, 2)
    with members(ack_wait=10) as consumer:
        late, later = poll(consumer)
        members.clock.now_ms += 10_000
        late.ack()
        (again,) = poll(consumer)
        assert again.body == b"1"
        # Handed out again already: both answers are for one message.
        later.ack()
        again.ack()
        assert members.journal().acked == {0, 1}
        members.clock.now_ms += 10_000
        assert poll(consumer) == []


def test_refusing_an_expired_delivery_counts_unless_it_is_out_again(
    store: Store, members: Members
) -> None:
    put(store, 2)
    with members(ack_wait=10) as consumer:
        first, second = poll(consumer)
        members.clock.now_ms += 10_000
        poll(consumer, 1)
        first.nack()
        second.nack()
        assert list(members.journal().nacked) == [1]
        assert poll(consumer) == []


def test_a_refused_message_is_recorded_for_the_writer(store: Store, members: Members) -> None:
    put(store, 3)
    with members() as consumer:
        first, second, third = poll(consumer)
        first.nack()
        second.nack(delay_level=5)
        third.ack()
        members.clock.now_ms += 60_000
        assert poll(consumer) == []
    assert members.journal().nacked == {0: (0, GROUP_TRIES), 1: (5, GROUP_TRIES)}
    assert members.journal().base == 3
    with members() as consumer:
        assert poll(consumer) == []


def test_the_limit_of_retries_makes_a_dead_letter(store: Store, members: Members) -> None:
    put(store, 2)
    with members(max_retries=0) as consumer:
        consumer.nack(poll(consumer), delay_level=3)
    assert members.journal().nacked == {0: (-1, 0), 1: (-1, 0)}


def test_released_messages_are_handed_out_again_first_and_uncounted(
    store: Store, members: Members
) -> None:
    put(store, 40)
    with members() as consumer:
        taken = poll(consumer, 3)
        consumer.release([taken[2], taken[0]])
        again = poll(consumer, 3)
        assert bodies(again) == [b"0", b"2", b"3"]
        assert [each.attempt for each in again] == [1, 1, 1]
        assert members.journal().records == 0


def test_an_exception_in_the_block_refuses_only_the_message_in_hand(
    store: Store, members: Members
) -> None:
    put(store, 5)
    seen = []
    with pytest.raises(ZeroDivisionError), members() as consumer:
        for message in consumer:
            seen.append(message.body)
            if message.body == b"2":
                1 / 0  # noqa: B018 - it raises
    assert seen == [b"0", b"1", b"2"]
    assert list(members.journal().nacked) == [2]
    with members() as consumer:
        assert bodies(poll(consumer)) == [b"0", b"1", b"3", b"4"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_releases_everything_uncounted(
    store: Store, members: Members, kind: type[BaseException]
) -> None:
    put(store, 5)
    with pytest.raises(kind), members() as consumer:
        for message in consumer:
            if message.body == b"2":
                raise kind
    assert members.journal().records == 0
    with members() as consumer:
        assert bodies(poll(consumer)) == [b"0", b"1", b"2", b"3", b"4"]


def test_break_releases_what_the_loop_had_out(store: Store, members: Members) -> None:
    put(store, 5)
    with members() as consumer:
        for message in consumer:
            if message.body == b"1":
                message.ack()
            if message.body == b"3":
                break
        assert [each.offset for each in consumer.pending()] == [3]
        # The message in hand stays there until this thread asks for another one.
        assert bodies(poll(consumer)) == [b"3", b"0", b"2", b"4"]
    assert members.journal().ack_calls == [(1,)]
    assert members.journal().nacked == {}


def test_an_exception_after_an_answer_refuses_nothing(store: Store, members: Members) -> None:
    put(store, 2)
    with pytest.raises(ZeroDivisionError), members() as consumer:
        for message in consumer:
            message.ack()
            1 / 0  # noqa: B018 - it raises
    assert members.journal().nacked == {}


def test_an_exception_with_many_messages_in_hand_refuses_none(
    store: Store, members: Members
) -> None:
    put(store, 2)
    with pytest.raises(ZeroDivisionError), members() as consumer:
        poll(consumer, 2)
        1 / 0  # noqa: B018 - it raises
    assert members.journal().nacked == {}


def test_no_more_than_max_in_flight_is_out(store: Store, members: Members) -> None:
    put(store, 50)
    with members(max_in_flight=7) as consumer:
        taken = poll(consumer)
        assert len(taken) == 7
        assert poll(consumer) == []
        consumer.ack(taken[3])
        assert bodies(poll(consumer)) == [b"7"]
        assert len(consumer.pending()) == 7


def test_a_message_without_answer_bounds_what_is_read_ahead(store: Store, members: Members) -> None:
    put(store, SPAN_MAX + 500)
    with members(max_in_flight=SPAN_MAX, ack_wait=10) as consumer:
        first = poll(consumer, 1)[0]
        count = 0
        while taken := poll(consumer, 100):
            consumer.ack(taken)
            count += len(taken)
        assert count == SPAN_MAX - 1
        first.ack()
        assert len(poll(consumer, 500)) == 500


def test_answers_after_close_are_refused(store: Store, members: Members) -> None:
    put(store, 2)
    with members() as consumer:
        first, second = poll(consumer)
    with pytest.raises(LostQueueError, match="queue 0 of topic 'orders'"):
        first.ack()
    with pytest.raises(LostQueueError):
        second.nack()
    with pytest.raises(ConsumerClosedError, match="billing"):
        poll(consumer)
    assert list(consumer) == []
    consumer.close()
    assert members.closed == [consumer]


def test_a_queue_wanted_back_goes_once_nothing_of_it_is_out(store: Store, members: Members) -> None:
    put(store, 8, queues=2)
    with members() as first:
        taken = poll(first)
        assert first.assignment() == [("orders", 0), ("orders", 1)]
        with members() as second:
            members.workers.run_all()
            first._claims.step()
            assert second.assignment() == []
            gone = [each for each in taken if each.queue == 1]
            first.ack(gone[:2])
            first.release(gone[2:])
            first._claims.step()
            second._claims.step()
            assert (first.assignment(), second.assignment()) == ([("orders", 0)], [("orders", 1)])
            assert bodies(poll(second)) == [b"5", b"7"]
            with pytest.raises(LostQueueError):
                gone[2].ack()
            gone_and_kept = [gone[3], *(each for each in taken if each.queue == 0)]
            with pytest.raises(LostQueueError):
                first.ack(gone_and_kept)
            assert members.journal(queue=0).acked == {0, 1, 2, 3}


def test_a_queue_that_is_lost_is_dropped_at_once(store: Store, members: Members) -> None:
    put(store, 4)
    with members() as consumer:
        taken = poll(consumer, 2)
        members.journal().owner.lose()
        with pytest.raises(LostQueueError):
            taken[0].ack()
        assert poll(consumer) == []
        members.workers.run_all()
        # Why it was lost is said also after it was given back.
        for answer in (consumer.ack, consumer.nack):
            with pytest.raises(LostQueueError, match="a test took it"):
                answer(taken[1])
        members.workers.run_all()
        assert bodies(poll(consumer)) == [b"0", b"1", b"2", b"3"]


def test_messages_of_the_retry_topic_show_where_they_come_from(
    store: Store, members: Members
) -> None:
    text = b"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01ABC\x02TAGS\x01paid\x02"
    store.put_copies([(Message("%RETRY%billing", b"again", reconsume_times=2), text)])
    with members(tag="new") as consumer:
        (found,) = poll(consumer)
        # The filter was applied before the first try.
        assert (found.topic, found.message_id, found.attempt) == ("orders", "ABC", 3)
        assert found.stored.topic == "%RETRY%billing"
        assert consumer.pending()[0].topic == "%RETRY%billing"


def test_a_message_of_the_retry_topic_without_an_origin_is_shown_as_it_is(
    store: Store, members: Members
) -> None:
    store.put_copies([(Message("%RETRY%billing", b"x", reconsume_times=1), b"")])
    with members() as consumer:
        (found,) = poll(consumer)
        assert (found.topic, found.message_id) == ("%RETRY%billing", found.stored.message_id)


def test_a_filter_passes_over_other_messages(store: Store, members: Members) -> None:
    store.put_many(
        [Message("orders", b"%d" % n, tag="paid" if n % 900 == 0 else "new") for n in range(2000)]
    )
    with members(tag="paid || refunded") as consumer:
        taken = poll(consumer)
        while more := poll(consumer):
            taken += more
        assert bodies(taken) == [b"0", b"900", b"1800"]
        consumer.ack(taken)
        assert consumer.lag() == {("orders", 0): 0}
        members.workers.run_all()
        assert members.journal().base == 2000


def test_topics_that_appear_later_and_patterns(store: Store, members: Members) -> None:
    put(store, 1, "order-eu")
    with members("order-*") as consumer:
        consumer.ack(poll(consumer))
        put(store, 1, "order-us")
        put(store, 1, "invoices")
        members.workers.run_all()
        assert consumer.assignment() == [("order-eu", 0), ("order-us", 0)]
        assert [each.topic for each in poll(consumer)] == ["order-us"]


def test_a_poll_that_finds_nothing_looks_for_new_topics(store: Store, members: Members) -> None:
    """The first message of a topic that a consumer had joined before came up to a second late."""
    put(store, 1, "order-eu")
    with members("order-*") as consumer:
        worker = members.workers.by_name["penstock-consumer-billing"]
        worker.step()
        members.clock.now_ms += 1
        woken = []
        worker.wake = lambda: woken.append(True)  # type: ignore[method-assign] # counted
        consumer.ack(poll(consumer))
        assert woken == []
        assert not poll(consumer)
        assert woken == [True]
        # Nothing is new: the next step is where it was.
        assert worker.step() == pytest.approx(STEP_S - 0.001)
        put(store, 1, "invoices")
        put(store, 1, "order-us")
        assert not consumer.gather()
        assert worker.step() == STEP_S
        assert [each.topic for each in poll(consumer)] == ["order-us"]


def test_pause_and_resume(store: Store, members: Members) -> None:
    put(store, 3)
    put(store, 3, "refunds")
    with members("orders", "refunds") as consumer:
        assert len(poll(consumer, 1)) == 1
        consumer.pause("orders")
        assert {each.topic for each in poll(consumer)} == {"refunds"}
        assert poll(consumer) == []
        consumer.pause()
        consumer.resume("orders")
        assert poll(consumer) == []
        consumer.resume()
        assert bodies(poll(consumer)) == [b"1", b"2"]
        # A pattern would be no topic's name, and pause nothing.
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(ArgumentError, match="patterns"):
                call("orders", "ref*")
        assert bodies(consumer.take(10)) == []


def test_every_answer_after_the_first_does_nothing(store: Store, members: Members) -> None:
    put(store, 3)
    with members() as consumer:
        acked, refused, released = poll(consumer)
        acked.ack()
        refused.nack()
        released.release()
        for message in (acked, refused):
            message.ack()
            message.nack()
            message.release()
            message.extend()
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
    put(store, 3)
    with store.consumer("billing", ["orders"]) as consumer:
        acked, refused, left = consumer.poll(3)
        acked.ack(sync=sync)
        refused.nack()
    given = [acked, refused] if many else acked
    for answer in (consumer.ack, consumer.nack):
        answer(given)
    consumer.ack(given, sync=False)
    for answer in (consumer.ack, consumer.nack):
        with pytest.raises(LostQueueError, match="may be handed out again"):
            answer([acked, left] if many else left)


def test_seek_continues_elsewhere(store: Store, members: Members) -> None:
    put(store, 10)
    with members() as consumer:
        old = poll(consumer, 5)
        consumer.ack(old[:2])
        consumer.seek("orders", 0, offset=8)
        assert bodies(poll(consumer)) == [b"8", b"9"]
        # Answers to what was handed out before do nothing.
        old[2].ack()
        old[3].nack()
        consumer.seek("orders", offset=0)
        assert bodies(poll(consumer)) == [b"%d" % n for n in range(10)]
        assert members.journal().acked == set()
        with pytest.raises(ArgumentError, match="at most 10"):
            consumer.seek("orders", 0, offset=11)
        with pytest.raises(ArgumentError, match=r"queue=3\).*assignment"):
            consumer.seek("orders", 3, offset=0)
        with pytest.raises(ArgumentError, match=r"topic=.other.\).*assignment"):
            consumer.seek("other", 3, offset=0)
        for strange in (True, "0", -1, 0.0):
            with pytest.raises(ArgumentError, match="queue"):
                consumer.seek("orders", strange, offset=0)  # type: ignore[arg-type] # for the test
        with pytest.raises(ArgumentError, match="time_ms"):
            consumer.seek("orders")
        consumer.seek("orders", time_ms=store.read("orders").messages[0].store_time_ms)
        assert poll(consumer, 1)[0].body == b"0"


def test_lag_and_pending(store: Store, members: Members) -> None:
    put(store, 10)
    with members(ack_wait=10) as consumer:
        taken = poll(consumer, 4)
        consumer.ack(taken[1])
        assert consumer.lag() == {("orders", 0): 9}
        members.clock.now_ms += 4_000
        assert consumer.pending() == [("orders", 0, n, 4.0, 6.0) for n in (0, 2, 3)]
    with members() as consumer:
        assert consumer.lag() == {("orders", 0): 9}


def test_ordered_keeps_the_order_of_a_queue_over_retries(store: Store, members: Members) -> None:
    put(store, 6, queues=2)
    with members(ordered=True) as consumer:
        first, second = poll(consumer)
        assert {first.body, second.body} == {b"0", b"1"}
        assert poll(consumer) == []
        first.nack()
        second.ack()
        (third,) = poll(consumer)
        assert third.body == b"3"
        members.clock.now_ms += 999
        assert poll(consumer) == []
        members.clock.now_ms += 1
        (again,) = poll(consumer)
        assert (again.body, again.attempt) == (b"0", 2)
        again.nack(delay_level=2)
        members.clock.now_ms += 9_999
        assert poll(consumer) == []
        members.clock.now_ms += 1
        (once_more,) = poll(consumer)
        assert (once_more.body, once_more.attempt) == (b"0", 3)
        assert members.journal().tries == {0: 2}
        once_more.ack()
        assert bodies(poll(consumer)) == [b"2"]


def test_ordered_counts_tries_over_a_close(store: Store, members: Members) -> None:
    put(store, 2)
    with members(ordered=True, max_retries=1) as consumer:
        poll(consumer)[0].nack()
    with members(ordered=True, max_retries=1) as consumer:
        (message,) = poll(consumer)
        assert (message.body, message.attempt) == (b"0", 2)
        message.nack()
        assert members.journal().nacked == {0: (-1, 1)}
        assert bodies(poll(consumer)) == [b"1"]


def test_ordered_after_ack_wait_the_same_message_comes_first(
    store: Store, members: Members
) -> None:
    put(store, 2)
    with members(ordered=True, ack_wait=10) as consumer:
        (late,) = poll(consumer)
        members.clock.now_ms += 10_000
        (again,) = poll(consumer)
        assert (again.body, again.attempt) == (b"0", 1)
        late.ack()
        assert bodies(poll(consumer)) == [b"1"]


def test_messages_that_are_gone_or_corrupt_do_not_block_a_queue(
    tmp_path: Path, members: Members, store: Store
) -> None:
    put(store, 5)
    victim = store.read("orders", 0, 2, 1).messages[0]
    (path,) = (store.path / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(victim.log_offset + victim.size - 20)
        file.write(b"\xff" * 20)
    with members() as consumer:
        taken = poll(consumer)
        assert bodies(taken) == [b"0", b"1", b"3", b"4"]
        consumer.ack(taken)
        assert consumer.lag() == {("orders", 0): 0}


@pytest.mark.slow
def test_two_threads_never_get_the_same_message(store: Store, members: Members) -> None:
    put(store, 4000, queues=4)
    got: list[list[bytes]] = [[], []]
    with members(max_in_flight=100_000) as consumer:

        def consume(mine: list[bytes]) -> None:
            while taken := consumer.poll(7, timeout=0):
                mine.extend(bodies(taken))
                consumer.ack(taken, sync=False)

        threads = [threading.Thread(target=consume, args=(each,)) for each in got]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    # A poll that finds that another thread has just taken all may return none: what is left is read here.
    with members() as consumer:
        rest = []
        while taken := poll(consumer):
            rest += bodies(taken)
            consumer.ack(taken)
    assert sorted(got[0] + got[1] + rest) == sorted(b"%d" % n for n in range(4000))


def test_a_poll_waits_for_a_message_and_for_an_answer(store: Store, members: Members) -> None:
    with members(max_in_flight=1) as consumer:
        put(store, 2)
        consumer._claims.step()
        found: list[Any] = []
        first = consumer.poll()[0]
        waits = threading.Thread(target=lambda: found.extend(consumer.poll()))
        waits.start()
        first.ack()
        waits.join(10)
        assert bodies(found) == [b"1"]
        found[0].ack()
        waits = threading.Thread(target=lambda: found.extend(consumer.poll()))
        waits.start()
        store.put("orders", b"new")
        waits.join(10)
        assert bodies(found) == [b"1", b"new"]


def test_close_ends_a_loop_in_another_thread(store: Store, members: Members) -> None:
    put(store, 1)
    consumer, seen, has_one = members(), [], threading.Event()

    def loop() -> None:
        for message in consumer:
            seen.append(message.body)
            has_one.set()

    thread = threading.Thread(target=loop)
    thread.start()
    assert has_one.wait(10)
    consumer.close()
    thread.join(10)
    assert not thread.is_alive()
    assert seen == [b"0"]


def test_a_timeout_returns_nothing(store: Store) -> None:
    with Members(store, clock=Clock())() as consumer:
        assert consumer.poll(timeout=0.01) == []


def test_a_failing_step_is_raised_at_the_next_poll(
    store: Store, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 1)
    with members() as consumer:
        monkeypatch.setattr(consumer._claims, "step", lambda: 1 / 0)
        members.workers.run_all()
        with pytest.raises(penstock.StorageError, match="division by zero"):
            poll(consumer)


def test_a_forked_child_cannot_use_it(store: Store, members: Members) -> None:
    put(store, 1)
    consumer = members()
    (message,) = poll(consumer)
    consumer.leave()
    with pytest.raises(ForkedStoreError):
        poll(consumer)
    with pytest.raises(ForkedStoreError):
        message.ack()
    consumer.close()
    assert members.journal().owner is not None


@pytest.mark.parametrize("workers", [1, 3])
def test_run_calls_the_handler_until_close(store: Store, workers: int) -> None:
    put(store, 50, queues=2)
    crew = WorkerGroup(lambda name, error: pytest.fail(f"{name}: {error}"), slow_ms=10_000, limit_ms=10_000)  # fmt: skip
    members = Members(store, spawn=crew)
    seen: list[bytes] = []

    def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body in (b"7", b"8"):
            raise ValueError(message.body)
        if len(seen) == 50:
            consumer.close()

    with members(workers=workers) as consumer:
        consumer.run(handle)
    crew.stop()
    assert sorted(seen) == sorted(b"%d" % n for n in range(50))
    done = members.journal(queue=0).acked | {each + 100 for each in members.journal(queue=1).acked}
    assert len(done) == 48
    refused = [list(members.journal(queue=queue).nacked) for queue in (0, 1)]
    assert refused == [[4], [3]]


def test_run_raises_what_stops_a_thread(store: Store) -> None:
    put(store, 1)
    crew = WorkerGroup(lambda name, error: pytest.fail(f"{name}: {error}"), slow_ms=10_000, limit_ms=10_000)  # fmt: skip
    members = Members(store, spawn=crew)

    def handle(_: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit), members() as consumer:
        consumer.run(handle)
    crew.stop()
    assert members.journal().records == 0


def test_answers_of_something_else_are_refused(store: Store, members: Members) -> None:
    put(store, 1)
    with members() as consumer, members() as other:
        (message,) = poll(consumer)
        for call in (other.ack, other.nack, other.release, other.extend):
            with pytest.raises(ArgumentError, match="this consumer has handed out"):
                call(message)
            with pytest.raises(ArgumentError, match="this consumer has handed out"):
                call([message.stored])
            with pytest.raises(ArgumentError, match="this consumer has handed out"):
                call("orders")  # type: ignore[arg-type] # the mistake
        with pytest.raises(ArgumentError, match="delay_level"):
            consumer.nack(message, delay_level=19)
