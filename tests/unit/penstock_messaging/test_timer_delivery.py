"""The timer service, on a clock and a thread that the test runs."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.timer_shop import DAY, NOW, WORKER, TimerShop

from penstock import Message, MessageError
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers import timer_delivery


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[TimerShop]:
    made = TimerShop(tmp_path / "store")
    yield made
    made.close()


# --- when


@pytest.mark.parametrize("delay_ms", [1, 999, 1000, 1001, 2500, 60_000, 3 * DAY])
def test_a_message_is_delivered_at_its_time_and_never_before(
    shop: TimerShop, delay_ms: int
) -> None:
    shop.put(b"x", delay_ms, queue=2, tag="t")
    assert shop.bodies(queue=2) == []
    # Over two days it is put to the timer topic again on the way.
    for _ in range(3):
        shop.run(after_ms=(delay_ms - 1) // 3)
    shop.run(after_ms=(delay_ms - 1) % 3)
    assert shop.bodies(queue=2) == []
    shop.run(after_ms=1)
    assert shop.bodies(queue=2) == [b"x"]
    message = shop.store.read("orders", 2).messages[0]
    assert (message.tag, message.store_time_ms) == ("t", NOW + delay_ms)
    assert message.all_properties["TIMER_DEQUEUE_MS"] == str(NOW + delay_ms)
    assert message.all_properties.get("TIMER_ROLL_TIMES") == ("1" if delay_ms > 2 * DAY else None)
    assert shop.stats()["waiting"] == 0


def test_messages_are_delivered_in_the_order_of_their_times(shop: TimerShop) -> None:
    for delay_ms in (2500, 700, 1900, 700, 30):
        shop.put(b"%d" % delay_ms, delay_ms)
    for ms in range(0, 3000, 10):
        shop.run(after_ms=10)
        assert shop.bodies() == [b"%d" % d for d in sorted((2500, 700, 1900, 700, 30)) if d <= ms + 10]  # fmt: skip


def test_put_many_and_submit_take_a_time_and_at_once_needs_no_service(shop: TimerShop) -> None:
    messages = [Message("orders", b"a", delay_ms=5), Message("orders", b"b")]
    receipts = shop.store.put_many(messages)
    assert [receipt.queue_offset for receipt in receipts] == [0, 0]
    shop.store.submit("orders", b"c", deliver_at=NOW + 3)
    shop.store.put("orders", b"d", deliver_at=NOW - 5)
    assert shop.bodies() == [b"b", b"d"]
    shop.run(after_ms=100)
    assert shop.bodies() == [b"b", b"d", b"c", b"a"]


def test_a_message_of_another_program_is_delivered_at_the_end_of_its_second(
    shop: TimerShop,
) -> None:
    shop.put(b"", 1)
    text = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02" % (NOW + 3000)
    shop.put_raw(b"theirs", text)
    shop.run(after_ms=3999)
    assert shop.bodies() == [b""]
    shop.run(after_ms=1)
    assert shop.bodies() == [b"", b"theirs"]


def test_the_thread_sleeps_until_the_next_message(shop: TimerShop) -> None:
    shop.put(b"x", 30_000)
    # Soon after a put the queue is looked at again, since the message may come later than its announcement.
    assert shop.run() == 1
    shop.run(after_ms=2000)
    # Nothing is announced for a minute.
    shop.put(b"y", 200_000)
    shop.run(after_ms=70_000)
    # What was delivered is saved a second later.
    assert shop.run() == 1
    assert shop.run(after_ms=1000) == 10
    assert shop.run(after_ms=127_930) == 0.07
    assert shop.bodies() == [b"x"]


def test_a_message_that_is_due_earlier_wakes_the_thread(shop: TimerShop) -> None:
    shop.put(b"x", 30_000)
    shop.run()
    worker = shop.workers.by_name[WORKER]
    worker.is_awake = False
    shop.put(b"y", 30_000)
    assert not worker.is_awake
    shop.put(b"z", 20)
    assert worker.is_awake


def test_a_store_without_timer_messages_has_no_thread_and_no_files(shop: TimerShop) -> None:
    shop.store.put("orders", b"x")
    shop.store.put("orders", b"y", delay_level=1)
    shop.close()
    assert not shop.has_thread
    assert not (shop.root / "timerwheel").exists()
    assert not (shop.root / "config" / "timercheck").exists()
    shop.open()
    assert not shop.has_thread


@pytest.mark.slow
def test_a_clock_that_goes_back_delivers_nothing_early_and_loses_nothing(shop: TimerShop) -> None:
    shop.put(b"x", 5000)
    shop.run(after_ms=4000)
    shop.clock.now_ms -= 3_600_000
    shop.put(b"y", 100)
    shop.run(after_ms=99)
    assert shop.bodies() == []
    shop.run(after_ms=1)
    assert shop.bodies() == [b"y"]
    shop.put(b"z", 100)
    shop.run()
    shop.kill()
    shop.open()
    shop.run(after_ms=3_600_000 + 10_000)
    assert sorted(set(shop.bodies())) == [b"x", b"y", b"z"]


def test_a_clock_that_jumps_ahead_delivers_all_that_is_due_by_then(shop: TimerShop) -> None:
    for number in range(50):
        shop.put(b"%02d" % number, 1000 * (number + 1))
    shop.run(after_ms=3_600_000)
    assert shop.bodies() == [b"%02d" % number for number in range(50)]


# --- closed, killed, opened


def test_a_clean_close_delivers_nothing_twice_also_within_a_second(shop: TimerShop) -> None:
    for delay_ms in (100, 300, 600, 5000):
        shop.put(b"%d" % delay_ms, delay_ms)
    shop.run(after_ms=300)
    assert shop.bodies() == [b"100", b"300"]
    shop.close()
    shop.open()
    assert shop.stats()["waiting"] == 2
    shop.run(after_ms=200)
    assert shop.bodies() == [b"100", b"300"]
    shop.run(after_ms=9000)
    assert shop.bodies() == [b"100", b"300", b"600", b"5000"]
    shop.close()
    shop.open()
    assert not shop.has_thread
    assert len(shop.bodies()) == 4


@pytest.mark.slow
def test_after_a_kill_at_most_what_was_delivered_since_the_last_save_comes_again(
    shop: TimerShop,
) -> None:
    for number in range(10):
        shop.put(b"%d" % number, 1000 * (number + 1))
    for _ in range(6):
        shop.run(after_ms=1000)
    shop.run(after_ms=10)
    assert len(shop.bodies()) == 6
    shop.kill()
    shop.open()
    shop.run(after_ms=60_000)
    bodies = shop.bodies()
    assert set(bodies) == {b"%d" % number for number in range(10)}
    assert len(bodies) <= 10 + 2


@pytest.mark.slow
def test_a_kill_long_after_a_delivery_repeats_nothing(shop: TimerShop) -> None:
    """A save in the second of a delivery cannot say that the second is over, and once nothing else followed it."""
    for number, delay_ms in enumerate((1050, 2020, 2040)):
        shop.put(b"%d" % number, delay_ms)
    for _ in range(500):
        shop.run(after_ms=10)
    shop.kill()
    shop.open()
    if WORKER in shop.workers.by_name:
        shop.run(after_ms=5000)
    assert shop.bodies() == [b"0", b"1", b"2"]


def test_messages_that_were_never_saved_are_read_from_their_queue(shop: TimerShop) -> None:
    shop.put(b"x", 5000)
    shop.kill()
    assert not (shop.root / "config" / "timercheck").exists()
    shop.open()
    assert shop.has_thread
    shop.run(after_ms=5000)
    assert shop.bodies() == [b"x"]


def test_a_reader_delivers_nothing_and_lists_what_waits(shop: TimerShop) -> None:
    shop.put(b"x", 5000)
    shop.put(b"yy", 1000)
    shop.close()
    shop.clock.now_ms += 10_000
    workers = ManualWorkers()
    with open_store(shop.root, clock=shop.clock, spawn=workers, read_only=True) as reader:
        assert [each.body_bytes for each in reader.delayed()] == [2, 1]
        assert WORKER not in workers.by_name
        assert list(reader.scan("orders")) == []


# --- what is in the way


def test_the_disk_is_full_and_nothing_is_lost(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put(b"x", 50)
    store = shop.store

    def full(_copies: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(store, "put_copies", full)
        assert shop.run(after_ms=50) == 1
        assert shop.run(after_ms=1000) == 1
    assert caplog.text.count("none is lost") == 1
    assert "no space" in shop.stats()["trouble"]
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"x"]
    assert shop.stats()["trouble"] is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"TIMER_OUT_MS\x01x\x02",
        b"TIMER_OUT_MS\x010\x02",
        b"TIMER_OUT_MS\x010\x02REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x010\x02",
        b"TIMER_OUT_MS\x010\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        b"TIMER_OUT_MS\x010\x02REAL_TOPIC\x01../x\x02REAL_QID\x010\x02",
        b"TIMER_OUT_MS\x010\x02REAL_TOPIC\x01orders\x02REAL_QID\x01-4\x02",
    ],
)
def test_what_cannot_be_delivered_is_skipped_with_a_warning(
    shop: TimerShop, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put(b"a", 10)
    shop.put_raw(b"bad", text)
    shop.put(b"b", 10)
    with caplog.at_level(logging.WARNING):
        shop.run(after_ms=2000)
    assert shop.bodies() == [b"a", b"b"]
    assert shop.stats()["skipped"] == 1
    assert "not delivered, and skipped" in caplog.text
    assert len(shop.bodies(TIMER_TOPIC)) == 3


def test_a_topic_that_takes_no_messages_does_not_hold_back_the_others(shop: TimerShop) -> None:
    shop.store.create_topic("closed", queues=1)
    for topic in ("orders", "closed", "orders"):
        shop.put(topic.encode(), 10, topic)
    shop.store.alter_topic("closed", perm=4)
    shop.run(after_ms=2000)
    assert shop.bodies() == [b"orders", b"orders"]
    assert shop.stats()["skipped"] == 1


def test_many_messages_of_one_moment_are_delivered_in_batches(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_delivery, "_COUNT_MAX", 7)
    monkeypatch.setattr(timer_delivery, "_DUE_MAX", 10)
    shop.store.put_many([Message("orders", b"%02d" % n, delay_ms=1500) for n in range(40)])
    shop.run(after_ms=1500)
    assert shop.bodies() == [b"%02d" % n for n in range(40)]


# --- refused


def test_the_limit_and_the_refusal_are_settings(tmp_path: Path) -> None:
    for settings, delay_ms in (({"delay_max_ms": 99}, 100), ({"timers": "refuse"}, 1)):
        shop = TimerShop(tmp_path / str(delay_ms), settings={"extensions": {"messaging": settings}})
        with pytest.raises(MessageError, match="refused"):
            shop.put(b"x", delay_ms)
        assert shop.store.topics() == {}
        assert not shop.has_thread
        shop.close()


def test_a_caller_cannot_put_to_the_timer_topic(shop: TimerShop) -> None:
    with pytest.raises(MessageError, match="delay_ms or deliver_at"):
        shop.store.put(TIMER_TOPIC, b"x", properties={"TIMER_OUT_MS": "0"})


# --- what others see


def test_a_store_says_how_many_wait_and_when_the_first_is_due(shop: TimerShop) -> None:
    assert shop.store.summary() == []
    shop.put(b"x", 5000)
    shop.put(b"y", 9000)
    (line,) = shop.store.summary()
    assert (line.key, line.value["waiting"]) == ("timers", 2)
    assert "4.x cannot deliver" in line.text
    shop.run(after_ms=9000)
    (line,) = shop.store.summary()
    assert line.value == {"waiting": 0, "first_due_ms": None}


def test_messages_with_a_level_and_with_a_time_do_not_wait_for_each_other(shop: TimerShop) -> None:
    shop.store.put("orders", b"level", delay_level=1)
    shop.put(b"time", 500)
    shop.run(after_ms=500)
    assert shop.bodies() == [b"time"]
    shop.clock.now_ms += 500
    shop.workers.run("penstock-deliver")
    assert shop.bodies() == [b"time", b"level"]


def test_a_transaction_takes_messages_with_a_time(shop: TimerShop) -> None:
    with shop.store.transaction() as tx:
        tx.put("orders", b"later", delay_ms=50)
        tx.put("orders", b"now")
    assert shop.bodies() == [b"now"]
    shop.run(after_ms=50)
    assert shop.bodies() == [b"now", b"later"]


def test_a_time_within_a_second_is_waited_for_where_the_message_is(shop: TimerShop) -> None:
    """It was put to the timer topic again every 10 ms; a broker with another `timerPrecisionMs` writes such times."""
    shop.put(b"", 1)
    text = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02" % (NOW + 3500)
    shop.put_raw(b"theirs", text)
    for _ in range(40):
        shop.run(after_ms=100)
    assert shop.bodies() == [b""]
    shop.run(after_ms=500)
    assert shop.bodies() == [b"", b"theirs"]
    assert shop.store.max_offset(TIMER_TOPIC) == 2


@pytest.mark.slow
def test_what_is_delivered_is_saved_when_its_second_is_over(shop: TimerShop) -> None:
    """A save a second after a delivery counted only the seconds that were over then, so a kill repeated up to two seconds."""
    for number in range(30):
        shop.put(b"%d" % number, 100 * number + 50)
    for _ in range(205):
        shop.run(after_ms=10)
    assert len(shop.bodies()) == 21
    shop.kill()
    shop.open()
    shop.run(after_ms=5000)
    assert len(shop.bodies()) == 30
