"""Consumers: which messages are handed out and when, read ahead, held in flight, and handed out again."""

import pickle
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.consumers import Members, bodies, poll, put

import penstock
from penstock import (
    ArgumentError,
    ArgumentTypeError,
    ConsumerClosedError,
    ForkedStoreError,
    LostQueueError,
    Message,
    StorageError,
    Store,
    StoreClosedError,
    TopicError,
)
from penstock.runtime.workers import WorkerGroup
from penstock.testing import InlineWorkers, open_store
from penstock_messaging.consuming.consumer import STEP_S
from penstock_messaging.consuming.consumer_options import checked_options
from penstock_messaging.consuming.in_flight import (
    Handling,
)
from penstock_messaging.consuming.selection import TopicSelection, checked_group, checked_topics
from penstock_messaging.consuming.workers import HandlerRun

WORKER = "penstock-consumer-billing"


def lags(consumer: Any) -> dict[tuple[str, int], int]:
    return {(each.topic, each.queue): each.lag for each in consumer.lag()}


def worker_group() -> WorkerGroup:
    """Real threads, for handlers."""
    return WorkerGroup(lambda name, error: pytest.fail(f"{name}: {error}"), slow_ms=10_000, limit_ms=10_000)  # fmt: skip


# --- what is handed out


def test_a_message_has_what_is_stored_and_a_retry_what_the_first_one_had(members: Members) -> None:
    more: Any = {"tag": "paid", "keys": ["A-1", "A-2"], "properties": {"a": "b"}, "flag": 7}
    members.store.put("orders", b"x", **more)
    with members() as consumer:
        (message,) = poll(consumer)
        stored = message.stored
        assert (message.topic, message.queue, message.queue_offset) == ("orders", 0, 0)
        assert (message.tag, message.keys, message.flag) == ("paid", ("A-1", "A-2"), 7)
        assert (message.properties, message.body) == ({"a": "b"}, b"x")
        assert (message.message_id, message.attempt) == (stored.message_id, 1)
        assert "orders" in repr(message)
        with pytest.raises(AttributeError):
            message.nothing  # noqa: B018 - it raises
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            pickle.loads(pickle.dumps(message)).ack()
    # One of the retry topic shows where it comes from; the filter was applied before the first try.
    text = b"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01ABC\x02TAGS\x01paid\x02"
    again = Message("%RETRY%billing", b"again", queue=0, reconsume_times=2)
    members.store.lowlevel.put_copies(
        [(again, text), (Message("%RETRY%billing", b"x", queue=0), b"")]
    )
    with members(tag="new") as consumer:
        found, plain = poll(consumer)
        assert (found.topic, found.message_id, found.attempt) == ("orders", "ABC", 3)
        assert found.stored.topic == consumer.pending()[0].topic == "%RETRY%billing"
        assert (plain.topic, plain.message_id) == ("%RETRY%billing", plain.stored.message_id)


def test_a_poll_that_finds_nothing_looks_for_new_topics(members: Members) -> None:
    """The first message of a topic that a consumer had joined before came up to a second late."""
    put(members, 1, "order-eu")
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
        put(members, 1, "invoices")
        put(members, 1, "order-us")
        assert not consumer.gather()
        assert worker.step() == STEP_S
        assert [each.topic for each in poll(consumer)] == ["order-us"]


def test_pause_and_resume(members: Members) -> None:
    put(members, 3)
    put(members, 3, "refunds")
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


# --- how much, and for how long


def test_break_releases_what_the_loop_had_out(members: Members) -> None:
    put(members, 5)
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


def test_an_exception_in_the_block_refuses_only_the_message_in_hand(members: Members) -> None:
    put(members, 5)
    with pytest.raises(ZeroDivisionError), members() as consumer:
        for message in consumer:
            if message.body == b"2":
                1 / 0  # noqa: B018 - it raises
    assert list(members.journal().nacked) == [2]
    with pytest.raises(ZeroDivisionError), members() as consumer:
        for message in consumer:
            message.ack()
            1 / 0  # noqa: B018 - it raises
    with pytest.raises(ZeroDivisionError), members() as consumer:
        assert bodies(poll(consumer)) == [b"1", b"3", b"4"]
        1 / 0  # noqa: B018 - it raises
    assert list(members.journal().nacked) == [2], "neither what has an answer nor one of many"


def test_a_queue_wanted_back_goes_once_nothing_of_it_is_out(members: Members) -> None:
    put(members, 8, queues=2)
    with members() as first:
        taken = poll(first)
        assert first.assignment() == [("orders", 0), ("orders", 1)]
        with members() as second:
            members.workers.run_all()
            members.group.members[0].step()
            assert second.assignment() == []
            gone = [each for each in taken if each.queue == 1]
            first.ack(gone[:2])
            first.release(gone[2:])
            members.group.members[0].step()
            members.group.members[1].step()
            assert (first.assignment(), second.assignment()) == ([("orders", 0)], [("orders", 1)])
            assert bodies(poll(second)) == [b"5", b"7"]
            with pytest.raises(LostQueueError):
                gone[2].ack()
            gone_and_kept = [gone[3], *(each for each in taken if each.queue == 0)]
            with pytest.raises(LostQueueError):
                first.ack(gone_and_kept)
            assert members.journal(queue=0).acked == {0, 1, 2, 3}


# --- queues that come and go


def test_a_queue_that_is_lost_is_dropped_at_once(members: Members) -> None:
    put(members, 4)
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


def test_seek_continues_elsewhere(members: Members) -> None:
    put(members, 10)
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
        with pytest.raises(ArgumentError, match=r"time=\.\.\."):
            consumer.seek("orders")
        consumer.seek(
            "orders", time=members.store.read("orders", 0).messages[0].store_time_ms / 1000
        )
        assert poll(consumer, 1)[0].body == b"0"


# --- ordered


def test_ordered_keeps_the_order_of_a_queue_over_retries(members: Members) -> None:
    put(members, 6, queues=2)
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
        again.nack(delay=5)
        members.clock.now_ms += 9_999
        assert poll(consumer) == []
        members.clock.now_ms += 1
        (once_more,) = poll(consumer)
        assert (once_more.body, once_more.attempt) == (b"0", 3)
        assert members.journal().tries == {0: 2}
        once_more.ack()
        assert bodies(poll(consumer)) == [b"2"]


def test_a_poll_waits_for_a_message_and_for_an_answer(members: Members) -> None:
    with members(max_in_flight=1) as consumer:
        put(members, 2)
        members.group.members[0].step()
        found: list[Any] = []
        first = consumer.poll()[0]
        waits = threading.Thread(target=lambda: found.extend(consumer.poll()))
        waits.start()
        first.ack()
        waits.join(30)
        assert bodies(found) == [b"1"]
        found[0].ack()
        waits = threading.Thread(target=lambda: found.extend(consumer.poll()))
        waits.start()
        members.store.put("orders", b"new", queue=0)
        waits.join(30)
        assert bodies(found) == [b"1", b"new"]


# --- threads, and the end


def test_a_failing_step_is_raised_at_the_next_poll(members: Members) -> None:
    put(members, 1)
    with members() as consumer:
        assert consumer.stats() == {"queues": 1, "in_flight": 0, "failed": 0}
        claims: Any = members.group.members[0]
        claims.step = lambda: 1 / 0
        members.workers.run_all()
        with pytest.raises(StorageError, match="division by zero"):
            poll(consumer)
        assert consumer.stats() == {"queues": 1, "in_flight": 0, "failed": 1}


def test_a_forked_child_cannot_use_it(members: Members) -> None:
    put(members, 1)
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
    threads = worker_group()
    members = Members(store, spawn=threads)
    put(members, 50, queues=2)
    seen: list[bytes] = []

    def handle(message: Any) -> None:
        seen.append(message.body)
        with pytest.raises(StorageError, match="called once at a time"):
            consumer.run(print)
        if len(seen) == 50:
            consumer.close()
        if message.body in (b"7", b"8"):
            raise ValueError(message.body)

    with members(workers=workers) as consumer:
        consumer.run(handle)
    threads.stop()
    assert sorted(seen) == sorted(b"%d" % n for n in range(50))
    assert [len(members.journal(queue=queue).acked) for queue in (0, 1)] == [24, 24]
    assert [list(members.journal(queue=queue).nacked) for queue in (0, 1)] == [[4], [3]]


def test_run_raises_what_stops_a_thread(store: Store) -> None:
    threads = worker_group()
    members = Members(store, spawn=threads)
    put(members, 1)

    def handle(_: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit), members() as consumer:
        consumer.run(handle)
    assert members.journal().records == 0

    def fail(_by: object, _timeout: float) -> None:
        raise OSError(5, "the disk fails")

    broken: Any = SimpleNamespace(group="billing", poll_for=fail, rouse=lambda: None)
    with pytest.raises(OSError, match="the disk fails"):
        HandlerRun(broken, print, Handling(), threads, 2).run()
    threads.stop()


def test_a_store_closes_its_consumers(tmp_path: Path) -> None:
    store = penstock.open(tmp_path / "s")
    store.put("orders", b"0", queue=0)
    consumer = store.consumer("billing", "orders")
    (message,) = consumer.poll()
    store.close()
    with pytest.raises(ConsumerClosedError, match="billing"):
        consumer.poll()
    assert list(consumer) == []
    with pytest.raises(LostQueueError, match="queue 0 of topic 'orders'"):
        message.ack()
    consumer.close()
    with pytest.raises(StoreClosedError):
        store.consumer("billing", "orders")


# --- broadcast


def test_every_broadcast_consumer_gets_all_messages_from_now_on(store: Store) -> None:
    receipts = [store.put("orders", b"%d" % n, queue=0) for n in range(5)]
    begin: dict[Any, int] = {
        "earliest": 0, "latest": 5, receipts[0].store_time_ms / 1000: 0, (receipts[4].store_time_ms + 1) / 1000: 5,
    }  # fmt: skip
    for start, offset in begin.items():
        with store.consumer("shop", "orders", broadcast=True, start=start) as consumer:
            assert lags(consumer) == {("orders", 0): 5 - offset}
    with (
        store.consumer("shop", "orders", broadcast=True) as one,
        store.consumer("shop", ["eu-*", "orders"], broadcast=True) as other,
    ):
        store.put("orders", b"after", queue=0)
        assert bodies(one.poll(10)) == bodies(other.poll(10)) == [b"after"]
        store.put("eu-1", b"first", queue=0)
        assert bodies(other.poll(timeout=10)) == [b"first"]
    assert store.groups() == []
    # It ignores answers, and gets nothing again.
    options: Any = {"start": "earliest", "max_in_flight": 1, "ack_wait": 0.001}
    with store.consumer("shop", "orders", broadcast=True, **options) as consumer:
        first, second, *_ = messages = consumer.poll(10)
        assert len(messages) == 6
        first.nack()
        consumer.ack([second, first])
        consumer.release(messages)
        assert (consumer.poll(timeout=0.01), consumer.pending()) == ([], [])
        assert lags(consumer) == {("orders", 0): 0}
        consumer.seek("orders", offset=3)
        assert len(consumer.poll(10)) == 3


@pytest.mark.parametrize("read_only", [False, True])
def test_a_broadcast_consumer_reads_a_topic_that_is_made_again_from_its_first_message(
    tmp_path: Path, read_only: bool
) -> None:
    """It went on at the offset where it had been in the old topic."""
    path = tmp_path / "store"
    with open_store(path, spawn=InlineWorkers()) as store:
        store.put_many([Message("orders", b"old", queue=queue) for queue in (0, 1)])
        # The writer's own, or one as in another process.
        reader = open_store(path, spawn=InlineWorkers(), read_only=True) if read_only else store
        with reader, reader.consumer("shop", "orders", broadcast=True) as consumer:
            store.delete_topic("orders")
            store.put_many([Message("orders", b"%d" % number, queue=0) for number in range(5)])
            assert store.max_offset("orders", 0) == 5
            # Nothing from the middle: it only notices now.
            assert consumer.poll(10, timeout=0) == []
            assert bodies(consumer.poll(10, timeout=0)) == [b"0", b"1", b"2", b"3", b"4"]
            assert consumer.assignment() == [("orders", 0)]


# --- arguments


def test_options_are_checked(store: Store) -> None:
    defaults = checked_options({})
    assert (defaults.tag, defaults.start, defaults.ack_wait) == ("*", "earliest", 30.0)
    assert (defaults.workers, defaults.max_in_flight, defaults.max_retries) == (1, 1000, None)
    assert checked_options({"broadcast": True}).start == "latest"
    assert checked_options({"start": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}).start == 1000
    assert checked_options({"start": 1.0002}).start == 1001
    wrong: list[Any] = [
        {"tag": 1}, {"start": "now"}, {"start": None}, {"ack_wait": 0}, {"ack_wait": "1"}, {"max_in_flight": 0},
        {"workers": 0}, {"workers": 1.5}, {"ordered": "no"}, {"broadcast": 2}, {"max_retries": -1},
        {"broadcast": True, "ordered": True}, {"broadcast": True, "max_retries": 3},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            checked_options(each)
    unknown: Any = {"ackwait": 3}
    with pytest.raises(ArgumentError, match="ack_wait, max_in_flight"):
        store.consumer("g", "a", **unknown)
    assert not list((store.path / "penstock").glob("groups/*"))


def test_names_and_patterns_select_topics() -> None:
    selection = TopicSelection(["orders", "eu-*-paid", "%RETRY%billing", "orders", "a|b*"])
    assert selection.names == ("orders", "%RETRY%billing")
    assert all(map(selection.matches, ["orders", "eu-1-paid", "eu--paid", "%RETRY%billing"]))
    others = ["order", "orders2", "eu-1-paid2", "%RETRY%other", "a"]
    assert not any(map(selection.matches, others))
    again = TopicSelection.parse(selection.text)
    assert again.texts == ("orders", "eu-*-paid", "%RETRY%billing", "a|b*")
    assert again.matches("eu-1-paid")
    # What a broker keeps for itself only a name selects.
    own = ["%RETRY%g", "%DLQ%x", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"]
    assert not any(map(TopicSelection(["*"]).matches, own))
    assert all(map(TopicSelection(own).matches, own))
    assert checked_group("billing_1-%|") == "billing_1-%|"
    for group in ("", "a b", "x" * 121, "ä"):
        with pytest.raises(ArgumentError, match="1 to 120"):
            checked_group(group)
    assert checked_topics("orders") == ("orders",)
    assert checked_topics(["orders", "eu-*"]) == ("orders", "eu-*")
    for wrong in ([], 7, [7]):
        with pytest.raises(ArgumentError):
            checked_topics(wrong)
    with pytest.raises(TopicError):
        checked_topics(["a/b"])


# --- read ahead


def test_while_an_answer_waits_for_the_disk_the_next_messages_are_read(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(members, 150)
    with members() as consumer:
        step, claims, steps = members.workers.by_name[WORKER].step, members.group.members[0], []
        step()
        monkeypatch.setattr(claims, "step", lambda: steps.append(1))
        messages = poll(consumer, 100)
        consumer.ack(messages[:1], sync=False)
        step()
        steps.clear()
        assert consumer.take(100) == [], "nothing waited for the disk"
        consumer.ack(messages[1:])
        pause_s = step()
        assert pause_s is not None
        assert 0 < pause_s <= STEP_S
        # Members and queues are looked for at the usual times only.
        assert steps == []
        assert bodies(consumer.take(100)) == [b"%d" % n for n in range(100, 150)]
