"""The forms of a timer message, which brokers of 5.x read and write: spec section 1.6 of the broker."""

from pathlib import Path

import pytest

from penstock import Message, MessageError, PropertyError, StoredMessage
from penstock.testing import ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC, pairs_of
from penstock_messaging.timers.timer_message import (
    Timer,
    cancelling,
    copied,
    out_ms_of,
    timed,
    timer_in,
    timer_of,
)

NOW = 1_700_000_000_000


def accept(message: Message, text: bytes = b"") -> None:
    """Take any message."""


def stored(tmp_path: Path, message: Message, text: bytes) -> StoredMessage:
    with open_store(tmp_path / "store", spawn=ManualWorkers()) as store:
        receipt = store.put_copies([(message, text)])[0]
        return store.at(receipt.log_offset)


def test_the_second_before_a_time_is_always_earlier_as_in_a_broker() -> None:
    assert [out_ms_of(ms) for ms in (5000, 5001, 5999, 6000)] == [4000, 5000, 5000, 5000]


def test_a_message_with_a_time_waits_with_the_properties_of_a_broker() -> None:
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


def test_properties_of_the_store_that_a_caller_gives_are_not_those_of_the_message() -> None:
    """A delivered message may be put again with all its properties."""
    given = {
        "REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "-1", "TIMER_OUT_MS": "0", "TIMER_ENQUEUE_MS": "1",
        "TIMER_DEQUEUE_MS": "2", "TIMER_ROLL_TIMES": "9", "UNIQ_KEY": "mine",
    }  # fmt: skip
    pairs = pairs_of(timed(Message("orders", b"", properties=given), NOW, accept)[1])
    assert pairs == {
        b"UNIQ_KEY": b"mine", b"REAL_TOPIC": b"orders", b"REAL_QID": b"0",
        b"TIMER_DELIVER_MS": b"%d" % NOW, b"TIMER_OUT_MS": b"%d" % (NOW - 1000),
    }  # fmt: skip


def test_a_caller_cannot_cancel_messages_by_a_property() -> None:
    message = Message("orders", b"", properties={"TIMER_DEL_UNIQKEY": "orders+other"})
    with pytest.raises(PropertyError, match=r"use Store\.cancel_delayed"):
        timed(message, NOW, accept)


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        (b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x015001\x02", 5001),
        (b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x016000\x02", 6000),
        # The exact time is not known, or cannot be right: at the end of the second.
        (b"TIMER_OUT_MS\x015000\x02", 6000),
        (b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x015000\x02", 6000),
        (b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x016001\x02", 6000),
        (b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x01-1\x02", 6000),
        (b"TIMER_OUT_MS\x015000\x02TIMER_DELIVER_MS\x01" + b"9" * 5000 + b"\x02", 6000),
    ],
)
def test_when_a_message_is_due(text: bytes, due_ms: int) -> None:
    assert timer_in(pairs_of(text)) == Timer(5000, due_ms, b"", b"", b"")


@pytest.mark.parametrize("text", [b"", b"TIMER_OUT_MS\x01-1\x02", b"TIMER_OUT_MS\x01" + b"9" * 20 + b"\x02", b"TIMER_OUT_MS\x01x\x02"])  # fmt: skip
def test_a_message_without_a_time_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError, match="TIMER_OUT_MS"):
        timer_in(pairs_of(text))


def test_a_delivered_copy_keeps_everything_and_adds_two_times(tmp_path: Path) -> None:
    message, text = timed(Message("orders", b"b", queue=2, tag="t", born_time_ms=5), NOW, accept)
    waiting = stored(tmp_path, message, text)
    copy, copy_text = copied(waiting, due_ms=NOW, enqueue_ms=NOW - 9000, now_ms=NOW + 3)
    assert (copy.topic, copy.queue, copy.body, copy.born_time_ms) == ("orders", 2, b"b", 5)
    times = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (NOW - 9000, NOW + 3)
    assert copy_text == text + times


@pytest.mark.slow
def test_before_its_second_it_is_put_to_the_timer_topic_again(tmp_path: Path) -> None:
    message, text = timed(Message("orders", b"b"), NOW, accept)
    for times, given in ((b"1", text), (b"8", text + b"TIMER_ROLL_TIMES\x017\x02"), (b"1", text + b"TIMER_ROLL_TIMES\x01x\x02")):  # fmt: skip
        waiting = stored(tmp_path, message, given)
        copy, copy_text = copied(waiting, due_ms=NOW - 1999, enqueue_ms=1, now_ms=2)
        assert (copy.topic, copy.queue) == (TIMER_TOPIC, 0)
        assert pairs_of(copy_text)[b"TIMER_ROLL_TIMES"] == times


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"])
def test_nothing_is_delivered_to_where_messages_wait(tmp_path: Path, topic: str) -> None:
    message, _ = timed(Message("orders", b""), NOW, accept)
    text = b"REAL_TOPIC\x01%s\x02REAL_QID\x010\x02TIMER_OUT_MS\x015000\x02" % topic.encode()
    with pytest.raises(MessageError, match="nothing is delivered"):
        copied(stored(tmp_path, message, text), due_ms=5500, enqueue_ms=0, now_ms=0)


def test_a_cancelling_message_names_the_other_one_as_a_broker_does(tmp_path: Path) -> None:
    message, text = timed(Message("orders", b"", properties={"UNIQ_KEY": "K"}), NOW, accept)
    timer = timer_of(stored(tmp_path, message, text))
    named = [pairs_of(text)[b"TIMER_DEL_UNIQKEY"] for _, text in cancelling(timer)]
    assert named == [b"orders+K", b"K"], "as brokers of 5.3 and of 5.5 have it"
    for number, cancel in enumerate(cancelling(timer)):
        read = timer_of(stored(tmp_path / str(number), *cancel))
        assert (read.cancels, read.out_ms, read.topic) == (timer.key, timer.out_ms, b"orders")


def test_a_cancelling_message_of_an_older_broker_names_no_topic() -> None:
    text = b"TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01orders\x02TIMER_DEL_UNIQKEY\x01K\x02"
    assert timer_in(pairs_of(text)).cancels == b"orders+K"
