"""Messages with a time: delivered then, never before and never twice, unless they are cancelled; on a clock and a thread that the test runs."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.shop import DAY, NOW, WORKER, TimerShop

from penstock import Message, MessageError, OffsetError, PropertyError
from penstock.contracts import DelayedMessage
from penstock.format.names import LOST_END
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC, pairs_of
from penstock_messaging.timers import timer_delivery, timer_queue
from penstock_messaging.timers.requests import due_ms_of
from penstock_messaging.timers.timer_message import (
    Timer,
    cancelling,
    copied,
    out_ms_of,
    timed,
    timer_in,
    timer_of,
)

SHOP = TimerShop


def theirs(out_ms: int, more: bytes = b"REAL_QID\x010\x02", topic: bytes = b"orders") -> bytes:
    """Return the text of a message that another program has put to the timer topic."""
    return b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%s\x02" % (out_ms, topic) + more


def rounds(shop: TimerShop, count: int) -> None:
    for _ in range(count):
        shop.workers.run(WORKER)


def in_small_steps(monkeypatch: pytest.MonkeyPatch, taken: int, count: int, due: int) -> None:
    """Let a few messages be as many as the service takes in, delivers and holds at a time, which is thousands."""
    monkeypatch.setattr(timer_queue, "COUNT_MAX", taken)
    monkeypatch.setattr(timer_delivery, "_COUNT_MAX", count)
    monkeypatch.setattr(timer_delivery, "_DUE_MAX", due)


# --- what a caller may request


def due(*, is_refused: bool = False, **given: Any) -> int:
    message = Message("orders", b"", **given)
    return due_ms_of(message, NOW, delay_max_ms=3 * DAY, is_refused=is_refused)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"delay": (3 * DAY + 1) / 1000}, "259200.001 s is refused: the longest is 259200 s"),
    (
        {"deliver_at": (NOW + 4 * DAY) / 1000},
        "345600 s is refused: the longest is 259200 s",
    ),
    ({"delay": 0.001, "deliver_at": NOW / 1000}, "delay and deliver_at is refused"),
    ({"delay": 0.001, "delay_level": 3}, "delay_level and delay is refused"),
    ({"deliver_at": 0, "delay_level": -3}, "delay_level and deliver_at is refused"),
    # For a directory that a broker of 4.x takes over.
    ({"delay": 0.001, "is_refused": True}, "delay_level"),
]


def test_a_delay_counts_from_now_and_a_time_is_taken_as_it_is(shop: TimerShop) -> None:
    assert (due(delay=0.001), due(delay=3 * DAY / 1000)) == (NOW + 1, NOW + 3 * DAY)
    assert due(deliver_at=(NOW + 7) / 1000) == NOW + 7
    for over in (0, (NOW - 1) / 1000, NOW / 1000):
        assert due(deliver_at=over, is_refused=True) == NOW
    for wrong, reason in REFUSED:
        with pytest.raises(MessageError, match=reason) as caught:
            due(**wrong)
        assert "othing was stored" in str(caught.value)
    with pytest.raises(MessageError, match="delay or deliver_at"):
        shop.store.put(TIMER_TOPIC, b"x", queue=0, properties={"TIMER_OUT_MS": "0"})
    settings: list[tuple[dict[str, Any], int]] = [
        ({"delay_max_ms": 99}, 100),
        ({"timers": "refuse"}, 1),
    ]
    for setting, delay_ms in settings:
        shop.close()
        shop.settings = {"extensions": {"messaging": setting}}
        with pytest.raises(MessageError, match="refused"):
            shop.put(b"x", delay_ms)
        assert shop.store.topics(system=True) == {}
        assert not shop.has_thread


# --- the forms of a timer message, which brokers of 5.x read and write


def accept(message: Message, text: bytes = b"") -> None:
    """Take any message."""


def test_a_message_with_a_time_waits_with_the_properties_of_a_broker() -> None:
    # The second before a time is always earlier.
    assert [out_ms_of(ms) for ms in (5000, 5001, 5999, 6000)] == [4000, 5000, 5000, 5000]
    message = Message("orders", b"b", queue=3, tag="t", keys=["k"], properties={"a": "b"}, flag=7)
    waiting, text = timed(message, NOW + 3500, accept)
    assert (waiting.topic, waiting.queue, waiting.body, waiting.flag) == (TIMER_TOPIC, 0, b"b", 7)
    pairs = pairs_of(text)
    unique = pairs.pop(b"UNIQ_KEY")
    assert len(unique) == 32
    assert unique != pairs_of(timed(message, NOW, accept)[1])[b"UNIQ_KEY"]
    assert pairs == {
        b"TAGS": b"t", b"KEYS": b"k", b"a": b"b", b"REAL_TOPIC": b"orders", b"REAL_QID": b"3",
        b"TIMER_DELIVER_MS": b"%d" % (NOW + 3500), b"TIMER_OUT_MS": b"%d" % (NOW + 3000),
    }  # fmt: skip
    # A delivered message may be put again with all its properties: those of the store are not those of the new message.
    own = ("REAL_QID", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES")
    given = {"REAL_TOPIC": TIMER_TOPIC, **dict.fromkeys(own, "1"), "UNIQ_KEY": "mine"}
    assert pairs_of(timed(Message("orders", b"", queue=0, properties=given), NOW, accept)[1]) == {
        b"UNIQ_KEY": b"mine", b"REAL_TOPIC": b"orders", b"REAL_QID": b"0",
        b"TIMER_DELIVER_MS": b"%d" % NOW, b"TIMER_OUT_MS": b"%d" % (NOW - 1000),
    }  # fmt: skip
    message = Message("orders", b"", queue=0, properties={"TIMER_DEL_UNIQKEY": "orders+other"})
    with pytest.raises(PropertyError, match=r"use Store\.cancel_delayed"):
        timed(message, NOW, accept)


def test_a_message_is_due_at_the_end_of_its_second_where_the_exact_time_cannot_be_right() -> None:
    exact = {b"5001": 5001, b"6000": 6000, b"5000": 6000, b"6001": 6000, b"-1": 6000}
    for given_ms, due_ms in {**exact, b"9" * 5000: 6000}.items():
        text = b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x01" + given_ms + b"\x02"
        assert timer_in(pairs_of(text)) == Timer(5000, due_ms, b"", b"", b"")
    assert timer_in(pairs_of(b"TIMER_OUT_MS\x015000\x02")).due_ms == 6000
    for wrong in (b"-1", b"9" * 20, b"x"):
        with pytest.raises(MessageError, match="TIMER_OUT_MS"):
            timer_in(pairs_of(b"TIMER_OUT_MS\x01" + wrong + b"\x02"))


def test_a_copy_keeps_everything_and_adds_two_times_or_a_count(shop: TimerShop) -> None:
    message, text = timed(Message("orders", b"b", queue=2, tag="t", born_time_ms=5), NOW, accept)
    waiting = shop.stored(message, text)
    copy, copy_text = copied(waiting, due_ms=NOW, enqueue_ms=NOW - 9000, now_ms=NOW + 3)
    assert (copy.topic, copy.queue, copy.body, copy.born_time_ms) == ("orders", 2, b"b", 5)
    times = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (NOW - 9000, NOW + 3)
    assert copy_text == text + times
    # Before its second it is put to the timer topic again.
    for more, count in ((b"", b"1"), (b"7", b"8"), (b"x", b"1")):
        again = shop.stored(message, text + b"TIMER_ROLL_TIMES\x01" + more + b"\x02")
        copy, copy_text = copied(again, due_ms=NOW - 1999, enqueue_ms=1, now_ms=2)
        assert (copy.topic, copy.queue) == (TIMER_TOPIC, 0)
        assert pairs_of(copy_text)[b"TIMER_ROLL_TIMES"] == count
    for topic in (b"RMQ_SYS_TRANS_HALF_TOPIC", TIMER_TOPIC.encode(), b"SCHEDULE_TOPIC_XXXX"):
        wrong = shop.stored(message, theirs(5000, topic=topic))
        with pytest.raises(MessageError, match="nothing is delivered"):
            copied(wrong, due_ms=5500, enqueue_ms=0, now_ms=0)


def test_a_cancelling_message_names_the_other_one_as_a_broker_does(shop: TimerShop) -> None:
    message, text = timed(
        Message("orders", b"", queue=0, properties={"UNIQ_KEY": "K"}), NOW, accept
    )
    timer = timer_of(shop.stored(message, text))
    named = [pairs_of(text)[b"TIMER_DEL_UNIQKEY"] for _, text in cancelling(timer)]
    assert named == [b"orders+K", b"K"], "as brokers of 5.3 and of 5.5 have it"
    for cancel in cancelling(timer):
        read = timer_of(shop.stored(*cancel))
        assert (read.cancels, read.out_ms, read.topic) == (timer.key, timer.out_ms, b"orders")


# --- when


@pytest.mark.parametrize("delay_ms", [1, 999, 1000, 1001, 2500, 60_000, 3 * DAY])
def test_a_message_is_delivered_at_its_time_and_not_before(shop: TimerShop, delay_ms: int) -> None:
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


def test_every_way_to_put_takes_a_time(shop: TimerShop) -> None:
    messages = [Message("orders", b"a", queue=0, delay=0.005), Message("orders", b"b", queue=0)]
    assert [receipt.queue_offset for receipt in shop.store.put_many(messages)] == [0, 0]
    shop.store.submit("orders", b"c", queue=0, deliver_at=(NOW + 3) / 1000)
    shop.store.put("orders", b"d", queue=0, deliver_at=(NOW - 5) / 1000)
    shop.store.put("orders", b"level", queue=0, delay_level=1)
    assert shop.bodies() == [b"b", b"d"]
    shop.run(after_ms=100)
    assert shop.bodies() == [b"b", b"d", b"c", b"a"]
    # Those with a level and those with a time do not wait for each other.
    shop.clock.now_ms += 900
    shop.workers.run("penstock-deliver")
    assert shop.bodies()[4:] == [b"level"]


def test_a_time_within_a_second_is_waited_for_where_the_message_is(shop: TimerShop) -> None:
    """It was put to the timer topic again every 10 ms; a broker with another `timerPrecisionMs` writes such times."""
    shop.put(b"", 1)
    shop.put_raw(b"theirs", theirs(NOW + 3500))
    for _ in range(40):
        shop.run(after_ms=100)
    assert shop.bodies() == [b""]
    shop.run(after_ms=500)
    assert shop.bodies() == [b"", b"theirs"]
    assert shop.store.max_offset(TIMER_TOPIC, 0) == 2


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
    # One that is due earlier wakes it.
    worker = shop.workers.by_name[WORKER]
    for delay_ms, is_woken in ((30_000, False), (20, True)):
        worker.is_awake = False
        shop.put(b"z", delay_ms)
        assert worker.is_awake == is_woken


def test_a_store_without_timer_messages_has_no_thread_and_no_files(shop: TimerShop) -> None:
    shop.store.put("orders", b"x", queue=0)
    shop.store.put("orders", b"y", queue=0, delay_level=1)
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


# --- closed, killed, opened


def test_what_waits_is_listed_by_time_and_counted(shop: TimerShop) -> None:
    assert shop.store.lowlevel.summary() == []
    late = shop.put(b"late", 9000, queue=3)
    soon = shop.put(b"soon", 2000, properties={"UNIQ_KEY": "K"})
    shop.put(b"gone", 5000, properties={"UNIQ_KEY": "K"})
    shop.put_raw(b"", theirs(NOW + 4000, b"TIMER_DEL_UNIQKEY\x01orders+K\x02"))
    shop.put_raw(b"", b"TIMER_OUT_MS\x01%d\x02" % NOW)
    shop.put_raw(b"", b"")
    expected = [
        DelayedMessage(soon.message_id, "orders", 0, NOW + 2000, NOW, 4),
        DelayedMessage(late.message_id, "orders", 3, NOW + 9000, NOW, 4),
    ]
    assert shop.store.delayed() == expected
    (line,) = shop.store.lowlevel.summary()
    assert (line.key, line.value["waiting"]) == ("timers", 2)
    assert "4.x cannot deliver" in line.text
    shop.close()
    shop.clock.now_ms += 10_000
    workers = ManualWorkers()
    with open_store(shop.root, clock=shop.clock, spawn=workers, read_only=True) as reader:
        assert reader.delayed() == expected
        assert WORKER not in workers.by_name
        assert list(reader.scan("orders")) == []
    shop.open()
    shop.run()
    assert shop.store.lowlevel.summary()[0].value == {"waiting": 0, "first_due_ms": None}


# --- what is in the way


def test_the_disk_is_full_and_nothing_is_lost(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.put(b"x", 50)

    def full(_copies: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(shop.store.lowlevel, "put_copies", full)
        assert shop.run(after_ms=50) == 1
        assert shop.run(after_ms=1000) == 1
    assert caplog.text.count("none is lost") == 1
    assert "no space" in shop.stats()["trouble"]
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"x"]
    assert shop.stats()["trouble"] is None


UNDELIVERABLE = [
    b"",
    b"TIMER_OUT_MS\x01x\x02",
    b"TIMER_OUT_MS\x010\x02",
    theirs(0, topic=b"rmq_sys_wheel_timer"),
    theirs(0, topic=b"RMQ_SYS_TRANS_HALF_TOPIC"),
    theirs(0, topic=b"../x"),
    theirs(0, topic=b"closed"),
    theirs(0, b"REAL_QID\x01-4\x02"),
]


@pytest.mark.parametrize("text", UNDELIVERABLE)
def test_what_cannot_be_delivered_is_skipped_with_a_warning(
    shop: TimerShop, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shop.store.create_topic("closed", queues=1, perm=4)
    shop.put(b"a", 10)
    shop.put_raw(b"bad", text)
    shop.put(b"b", 10)
    shop.run(after_ms=2000)
    assert shop.bodies() == [b"a", b"b"]
    assert shop.stats()["skipped"] == 1
    assert "not delivered, and skipped" in caplog.text
    assert len(shop.bodies(TIMER_TOPIC)) == 3


def test_an_offset_that_the_queue_does_not_have_is_moved_into_it(shop: TimerShop) -> None:
    shop.put(b"x", 1000)
    queue, refused = timer_queue.TimerQueue(), list[str]()
    queue.offset = 7
    assert not queue.read_new(shop.store.lowlevel, NOW, lambda *_: None, refused.append)
    assert queue.offset == 1
    assert "read to 7, and has the offsets 0 to 1" in refused[0]


# --- cancelled


@pytest.mark.parametrize("after_ms", [0, 4999, 5700])
def test_a_cancelled_message_is_not_delivered(shop: TimerShop, after_ms: int) -> None:
    """Before it is taken in, while it waits, and while its second is being delivered."""
    first, other = shop.put(b"x", 5900), shop.put(b"y", 5900)
    if after_ms:
        shop.run(after_ms=after_ms)
    assert shop.store.cancel_delayed(first)
    assert not shop.store.cancel_delayed(first.message_id)
    assert [each.message_id for each in shop.store.delayed()] == [other.message_id]
    shop.run(after_ms=10_000)
    assert shop.bodies() == [b"y"]
    assert shop.stats()["cancelled"] == 1
    # Nor after a kill; and what was delivered before one is not cancelled, though nobody has looked yet for what was.
    third = shop.put(b"z", 1000)
    shop.run(after_ms=1000)
    shop.kill()
    shop.open()
    assert not shop.store.cancel_delayed(third)
    shop.later(10_000)
    assert shop.bodies() == [b"y", b"z"]


def test_an_id_whose_record_is_deleted_leads_to_those_that_wait(tmp_path: Path) -> None:
    """What is put again has another id, and is delivered though the error says that there is no such message."""
    given: dict[str, Any] = {"geometry.segment_bytes": 65536}
    with open_store(tmp_path / "s", retention=[], spawn=ManualWorkers(), **given) as store:
        first = store.put("orders", b"x", queue=0, delay=60)
        store.put_many([Message("other", bytes(1000), queue=0)] * 80)
        assert store.discard_before(log_offset=65536) == 1
        with pytest.raises(OffsetError) as caught:
            store.cancel_delayed(first)
        assert "`delayed`" in caught.value.__notes__[0]


@pytest.mark.slow
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_cancelled_message_whose_time_came_while_nobody_wrote_is_not_delivered(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    """The message that cancels was looked for only among those of seconds that had been opened, and in a later batch."""
    in_small_steps(monkeypatch, taken=2, count=1000, due=20_000)
    receipts = [shop.put(b"%d" % number, 3000 + number, queue=0) for number in range(8)]
    if is_saved:
        shop.run()
        shop.run(after_ms=1000)
    assert all(shop.store.cancel_delayed(receipt) for receipt in receipts[1:])
    shop.kill()
    shop.clock.now_ms += 60_000
    shop.open()
    shop.run()
    assert shop.bodies() == [b"0"]


def test_another_program_cancels_by_key_and_only_what_waits_is_cancelled(shop: TimerShop) -> None:
    plain, delivered = shop.store.put("other", b"p", queue=0), shop.put(b"d", 10, topic="other")
    shop.put(b"x", 5500, properties={"UNIQ_KEY": "K"})
    shop.put(b"y", 5500, properties={"UNIQ_KEY": "K"}, topic="other")
    shop.put_raw(b"0", theirs(NOW + 5000, b"TIMER_DEL_UNIQKEY\x01orders+K\x02"))
    shop.put(b"z", 5500, properties={"UNIQ_KEY": "old"})
    # A broker of an older version names no topic.
    shop.put_raw(b"0", theirs(NOW + 5000, b"TIMER_DEL_UNIQKEY\x01old\x02"))
    shop.run(after_ms=9000)
    assert (shop.bodies(), shop.bodies("other")) == ([], [b"p", b"d", b"y"])
    assert shop.stats()["cancelled"] == 2
    for each in (plain, delivered):
        assert shop.store.cancel_delayed(each) is False
    with pytest.raises(MessageError, match="no UNIQ_KEY"):
        shop.store.cancel_delayed(shop.put_raw(b"theirs", theirs(NOW + 15_000)))


@pytest.mark.slow
def test_a_cancelled_copy_stays_so_while_the_files_name_the_message_that_was_rolled(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cancelled the copy was put into a second that is over; after a kill there was another copy, and it was delivered."""
    in_small_steps(monkeypatch, taken=1000, count=1, due=20_000)
    receipt = shop.put(b"x", 3 * DAY)
    shop.run()
    shop.run(after_ms=DAY)
    for number in range(6):
        shop.put(b"%d" % number, DAY + 500, queue=0)
    shop.run()
    shop.run(after_ms=1000)
    # A second with more than is delivered within a second.
    shop.clock.now_ms = NOW + 2 * DAY + 1500
    rounds(shop, 2)
    assert shop.store.max_offset(TIMER_TOPIC, 0) == 8
    assert shop.store.cancel_delayed(receipt)
    shop.clock.now_ms += 1100
    rounds(shop, 1)
    assert shop.messaging.timers.read_ms == NOW + 2 * DAY
    shop.kill()
    shop.open()
    shop.run()
    shop.run(after_ms=2 * DAY)
    assert {*shop.bodies()} == {b"%d" % number for number in range(6)}


# When what cancels a message is put to the timer topic again, in the next tests; and the second of the message.
AGAIN_MS, LAST_MS = NOW + DAY // 4 + 2 * DAY, NOW + 3 * DAY - 1000


def rolled_and_cancelled(shop: TimerShop) -> None:
    """Go to where a message that an earlier process cancelled was put to the timer topic again, and what cancels it is to be."""
    receipt = shop.put(b"x", 3 * DAY - 100)
    shop.run()
    shop.run(after_ms=1000)
    shop.clock.now_ms = AGAIN_MS - 2 * DAY
    for _ in range(4):
        shop.store.put("orders", b"later", queue=0, deliver_at=LAST_MS / 1000 + 100)
    assert shop.store.cancel_delayed(receipt)
    shop.run()
    shop.run(after_ms=1000)
    shop.kill()
    shop.open()
    shop.clock.now_ms = NOW + 2 * DAY
    shop.run()
    shop.store.put("orders", b"y", queue=0, deliver_at=(LAST_MS + 900) / 1000)
    for _ in range(3):
        shop.run(after_ms=1000)


@pytest.mark.slow
@pytest.mark.parametrize("is_begun", [True, False])
def test_what_cancels_is_handled_first_also_if_the_machine_sleeps_for_hours(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """The machine sleeps when the second has come in which that is put again, or just after it was put, behind other messages.

    Then it was handled after the message, which had come due.
    """
    rolled_and_cancelled(shop)
    in_small_steps(monkeypatch, taken=1, count=1000, due=20_000)
    shop.clock.now_ms = AGAIN_MS
    if is_begun:
        shop.clock.now_ms += 1500
    rounds(shop, 1)
    assert (shop.store.max_offset(TIMER_TOPIC, 0) > 9) == is_begun
    shop.clock.now_ms = LAST_MS + 60_000
    shop.run()
    assert shop.bodies() == [b"y"]


@pytest.mark.slow
@pytest.mark.parametrize("is_saved", [True, False])
def test_after_the_clock_went_back_a_kill_changes_neither_times_nor_cancellings(
    shop: TimerShop, is_saved: bool
) -> None:
    """The files cannot name a second that they say is over; such a message was taken for one of the second after it.

    So it came late, and what cancelled it in its own second did not find it. The same happened without a clock that went back to
    a message that was put while the files were written.
    """
    shop.put(b"first", 10_000)
    shop.run(after_ms=10_000)
    shop.run(after_ms=1000)
    shop.clock.now_ms -= 5000
    receipt = shop.put(b"x", 1500)
    shop.put(b"y", 1500)
    shop.run()
    shop.run(after_ms=1000)
    assert shop.store.cancel_delayed(receipt)
    if is_saved:
        shop.clock.now_ms -= 1000
        shop.run()
    shop.kill()
    shop.open()
    shop.clock.now_ms += 1000 * is_saved
    shop.run(after_ms=499)
    assert shop.bodies() == [b"first"]
    shop.run(after_ms=1)
    assert shop.bodies() == [b"first", b"y"]
    shop.run(after_ms=10_000)
    assert shop.bodies() == [b"first", b"y"]


@pytest.mark.parametrize("is_saved", [True, False])
def test_what_was_delivered_before_a_kill_is_counted_though_it_is_not_due_by_the_next_clock(
    shop: TimerShop, is_saved: bool
) -> None:
    """As on a copy that is promoted, and whose clock is an hour behind."""
    receipt = shop.put(b"x", 10_000)
    shop.run(after_ms=10_000)
    assert shop.bodies() == [b"x"]
    shop.kill()
    shop.clock.now_ms -= 3_600_000
    shop.open()
    shop.run(after_ms=1000)
    assert not shop.store.cancel_delayed(receipt)
    if is_saved:
        shop.put(b"y", 1500)
        shop.run(after_ms=2000)
        shop.kill()
        shop.open()
    shop.run(after_ms=7_200_000)
    assert shop.bodies() == [b"x", *[b"y"] * is_saved]


def test_what_is_put_while_the_newest_record_is_ahead_of_the_clock_can_be_cancelled(
    shop: TimerShop,
) -> None:
    old = shop.put(b"old", 600_000)
    shop.clock.now_ms += 3_600_000
    shop.put(b"ahead", 1000, "others")
    shop.kill()
    shop.clock.now_ms -= 3_600_000
    shop.open()
    new = shop.put(b"new", 60_000)
    shop.run(after_ms=1000)
    assert shop.store.cancel_delayed(new)
    assert shop.store.cancel_delayed(old), (
        "it is due before the newest record, and was not delivered"
    )
    shop.run(after_ms=7_200_000)
    assert shop.bodies() == []


def test_what_was_delivered_in_seconds_that_a_clock_ahead_says_are_over_is_counted_after_a_kill(
    shop: TimerShop,
) -> None:
    shop.put(b"far", 7_200_000)
    shop.run(after_ms=1000)
    shop.clock.now_ms += 3_600_000
    shop.close()
    shop.clock.now_ms -= 3_599_000
    shop.open()
    shop.put(b"x", 5000)
    for _ in range(6):
        shop.run(after_ms=1000)
    assert shop.bodies() == [b"x"]
    shop.kill()
    shop.open()
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"x"]


# --- what no file names


def without_files(shop: TimerShop) -> None:
    """Close the store, and be a copy of it, which has its log and says how far messages are delivered."""
    shop.close()
    shutil.rmtree(shop.root / "timerlog")
    (shop.root / "timerwheel").unlink()
    shop.open()


def after_the_clock_went_back(shop: TimerShop) -> None:
    """Deliver a message, set the clock back within its second, and put another one, of a second before it."""
    shop.clock.now_ms += 100
    shop.put(b"first", 1000)
    for _ in range(15):
        shop.run(after_ms=100)
    shop.clock.now_ms -= 30_000
    shop.put(b"second", 5000)
    shop.run()
    shop.run(after_ms=200)


def opened_again(shop: TimerShop) -> None:
    shop.close()
    shop.open()


@pytest.mark.parametrize("again", [opened_again, without_files])
def test_a_message_that_is_put_after_the_clock_went_back_waits_over_a_close(
    shop: TimerShop, again: Callable[[TimerShop], None]
) -> None:
    """It was lost: the files say that its second is over, and only named what was left of the second in which they end."""
    after_the_clock_went_back(shop)
    again(shop)
    assert shop.clock.now_ms + 4800 in [each.due_ms for each in shop.store.delayed()]
    shop.run(after_ms=4799)
    assert shop.bodies() == [b"first"]
    shop.run(after_ms=1)
    without_files(shop)
    shop.run(after_ms=60_000)
    assert shop.bodies() == [b"first", b"second"]


def test_a_message_that_is_two_days_away_since_the_clock_went_back_waits_where_no_file_names_it(
    shop: TimerShop,
) -> None:
    """It is looked at before its time, in a second that is over by the clock of then, and was taken for delivered."""
    shop.clock.now_ms += 3 * DAY
    shop.put(b"first", 1000)
    shop.put(b"x", DAY // 4)
    for _ in range(4):
        shop.run(after_ms=1000)
    shop.clock.now_ms -= 3 * DAY
    without_files(shop)
    for _ in range(14):
        shop.run(after_ms=DAY // 4)
    assert shop.bodies() == [b"first", b"x"]


def test_a_put_that_took_longer_than_its_delay_is_delivered_once_where_no_file_names_it(
    shop: TimerShop,
) -> None:
    """Else its topic, which was deleted since, would be there again."""
    shop.put(b"first", 1000)
    more = b"REAL_QID\x010\x02TIMER_DELIVER_MS\x01%d\x02" % (NOW - 500)
    shop.put_raw(b"x", theirs(NOW - 1000, more))
    shop.run(after_ms=2000)
    assert sorted(shop.bodies()) == [b"first", b"x"]
    shop.run(after_ms=1000)
    shop.store.delete_topic("orders")
    without_files(shop)
    if shop.has_thread:
        shop.run(after_ms=60_000)
    assert "orders" not in shop.store.topics()


@pytest.mark.slow
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_message_that_was_put_again_on_its_way_is_delivered_once_where_no_file_names_it(
    shop: TimerShop, is_noted: bool
) -> None:
    """Both were delivered: by a promoted copy, and, after a kill, by a store that has counted all from its log."""
    shop.put(b"x", 3 * DAY - 100)
    for _ in range(10):
        shop.run(after_ms=DAY // 4)
    assert shop.store.max_offset(TIMER_TOPIC, 0) > 1
    if is_noted:
        shop.close()
        (shop.root / LOST_END).touch()
        shop.open()
        shop.run(after_ms=1000)
        shop.run(after_ms=1000)
        shop.kill()
        shop.open()
    else:
        without_files(shop)
    assert len(shop.store.delayed()) == 1
    for _ in range(4):
        shop.run(after_ms=DAY // 4)
    assert shop.bodies() == [b"x"]


@pytest.mark.slow
def test_a_message_that_was_put_again_just_before_a_kill_is_delivered_once_though_its_time_has_come(
    shop: TimerShop,
) -> None:
    """The machine was down for the rest of the time: both records were due then, and both were delivered."""
    shop.put(b"x", 3 * DAY - 100)
    shop.run()
    shop.run(after_ms=1000)
    while shop.store.max_offset(TIMER_TOPIC, 0) == 1:
        shop.run(after_ms=DAY // 8)
    shop.kill()
    shop.clock.now_ms += 3 * DAY
    shop.open()
    shop.run()
    shop.run(after_ms=1000)
    assert shop.bodies() == [b"x"]
