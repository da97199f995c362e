"""Messages that are cancelled while they wait: which ones are, and that they stay so."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.timer_shop import DAY, NOW, WORKER, TimerShop

from penstock import MessageError
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers import timer_delivery, timer_queue
from penstock_messaging.timers.cancellations import Cancellations
from penstock_messaging.timers.due_timers import DueTimers, due_in, key_hash
from penstock_messaging.timers.timer_message import cancelling, timer_of
from penstock_messaging.timers.timer_queue import entry_of
from penstock_messaging.timers.waiting_timers import WaitingTimers


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[TimerShop]:
    made = TimerShop(tmp_path / "store")
    yield made
    made.close()


def test_what_cancels_is_found_by_second_topic_and_key(shop: TimerShop) -> None:
    """What is due with it and what is due later, and not the message of another second."""
    receipts = [
        shop.put(b"x", 5100, properties={"UNIQ_KEY": "K"}),
        shop.put(b"x", 5900, properties={"UNIQ_KEY": "K"}),
        shop.put(b"other", 5900, properties={"UNIQ_KEY": "L"}),
        shop.put(b"second", 6900, properties={"UNIQ_KEY": "K"}),
        shop.put(b"topic", 5900, topic="other", properties={"UNIQ_KEY": "K"}),
    ]
    messages = [shop.store.get(receipt.message_id) for receipt in receipts]
    cancels = shop.store.put_copies(cancelling(timer_of(messages[0])))[0]
    due = DueTimers()
    for message in [*messages, shop.store.get(cancels.message_id)]:
        timer = timer_of(message)
        entry = entry_of(message, timer, NOW)
        due.add(entry, due_in(entry, timer, NOW + 5000), key_hash(timer))
    taken = due.take(NOW + 5500, 10, 1 << 20)
    found, done = Cancellations(WaitingTimers(), due).among(shop.store, taken)
    assert found == [receipts[0].log_offset, receipts[1].log_offset]
    assert done == [cancels.log_offset]


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


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["close", "kill"])
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_cancelled_message_stays_cancelled(shop: TimerShop, ends: str, is_saved: bool) -> None:
    receipt = shop.put(b"x", 5900)
    shop.put(b"y", 5900)
    if is_saved:
        shop.run(after_ms=1000)
        shop.run(after_ms=1000)
    assert shop.store.cancel_delayed(receipt)
    getattr(shop, ends)()
    shop.open()
    assert len(shop.store.delayed()) == 1
    assert not shop.store.cancel_delayed(receipt)
    shop.run(after_ms=10_000)
    assert shop.bodies() == [b"y"]


@pytest.mark.slow
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_cancelled_message_whose_time_came_while_nobody_wrote_is_not_delivered(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    """The message that cancels was looked for only among those of seconds that had been opened, and in a later batch."""
    monkeypatch.setattr(timer_queue, "COUNT_MAX", 2)
    receipts = [shop.put(b"%d" % number, 3000 + number) for number in range(8)]
    if is_saved:
        shop.run()
        shop.run(after_ms=1000)
    assert all(shop.store.cancel_delayed(receipt) for receipt in receipts[1:])
    shop.kill()
    shop.clock.now_ms += 60_000
    shop.open()
    shop.run()
    assert shop.bodies() == [b"0"]


@pytest.mark.slow
@pytest.mark.parametrize("second_kill_ms", [5050, 5950])
def test_a_cancelled_message_stays_cancelled_after_two_kills(
    shop: TimerShop, second_kill_ms: int
) -> None:
    """The message was delivered after the second kill, if its second was then delivered in part.

    A save before the first kill named the message, one after it what cancels the message. By then both had been handled, and what
    cancels was put into a second that is over, though the message still stood in one that is not.
    """
    receipt = shop.put(b"x", 5900)
    shop.put(b"y", 5900)
    shop.run()
    shop.run(after_ms=1000)
    assert shop.store.cancel_delayed(receipt)
    shop.kill()
    shop.clock.now_ms = NOW + 4900
    shop.open()
    shop.run()
    shop.clock.now_ms = NOW + 5000
    shop.run(after_ms=second_kill_ms - 5000)
    shop.kill()
    shop.open()
    shop.run()
    shop.run(after_ms=10_000)
    assert set(shop.bodies()) == {b"y"}


def test_a_message_that_was_rolled_is_cancelled_by_its_first_id(shop: TimerShop) -> None:
    receipt = shop.put(b"x", 3 * DAY)
    shop.put(b"y", 3 * DAY)
    shop.run()
    shop.run(after_ms=2 * DAY + 1000)
    shop.run()
    assert shop.store.max_offset(TIMER_TOPIC) == 4
    assert shop.store.cancel_delayed(receipt)
    for _ in range(3):
        shop.run(after_ms=DAY)
    assert shop.bodies() == [b"y"]


def test_another_program_cancels_by_a_key(shop: TimerShop) -> None:
    shop.put(b"x", 5500, properties={"UNIQ_KEY": "K"})
    shop.put(b"y", 5500, properties={"UNIQ_KEY": "K"}, topic="other")
    text = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01orders\x02TIMER_DEL_UNIQKEY\x01orders+K\x02" % (NOW + 5000)  # fmt: skip
    shop.put_raw(b"0", text)
    shop.run(after_ms=9000)
    assert (shop.bodies(), shop.bodies("other")) == ([], [b"y"])
    assert shop.stats()["cancelled"] == 1


def test_what_does_not_wait_cannot_be_cancelled(shop: TimerShop) -> None:
    plain = shop.store.put("orders", b"x")
    delivered = shop.put(b"y", 10)
    shop.run(after_ms=10)
    for each in (plain, delivered):
        assert shop.store.cancel_delayed(each) is False
    text = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02" % (NOW + 5000)
    with pytest.raises(MessageError, match="no UNIQ_KEY"):
        shop.store.cancel_delayed(shop.put_raw(b"theirs", text))


def rounds(shop: TimerShop, count: int) -> None:
    for _ in range(count):
        shop.workers.run(WORKER)


@pytest.mark.slow
def test_a_rolled_message_that_would_be_rolled_again_is_cancelled_with_its_copy(
    shop: TimerShop,
) -> None:
    receipt = shop.put(b"x", 3 * DAY)
    shop.run()
    shop.run(after_ms=1000)
    shop.run(after_ms=2 * DAY)
    shop.kill()
    assert shop.open().cancel_delayed(receipt)
    assert shop.store.delayed() == []
    shop.run()
    shop.run(after_ms=2 * DAY)
    assert shop.bodies() == []


@pytest.mark.slow
def test_a_cancelled_copy_stays_so_while_the_files_name_the_message_that_was_rolled(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cancelled the copy was put into a second that is over; after a kill there was another copy, and it was delivered."""
    monkeypatch.setattr(timer_delivery, "_COUNT_MAX", 1)
    receipt = shop.put(b"x", 3 * DAY)
    shop.run()
    shop.run(after_ms=DAY)
    for number in range(6):
        shop.put(b"%d" % number, DAY + 500)
    shop.run()
    shop.run(after_ms=1000)
    # A second with more than is delivered within a second.
    shop.clock.now_ms = NOW + 2 * DAY + 1500
    rounds(shop, 2)
    assert shop.store.max_offset(TIMER_TOPIC) == 8
    assert shop.store.cancel_delayed(receipt)
    shop.clock.now_ms += 1100
    rounds(shop, 1)
    assert shop.timers.read_ms == NOW + 2 * DAY
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
        shop.store.put("orders", b"later", deliver_at=LAST_MS + 100_000)
    assert shop.store.cancel_delayed(receipt)
    shop.run()
    shop.run(after_ms=1000)
    shop.kill()
    shop.open()
    shop.clock.now_ms = NOW + 2 * DAY
    shop.run()
    shop.store.put("orders", b"y", deliver_at=LAST_MS + 900)
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
    monkeypatch.setattr(timer_queue, "COUNT_MAX", 1)
    shop.clock.now_ms = AGAIN_MS
    if is_begun:
        shop.clock.now_ms += 1500
    rounds(shop, 1)
    assert (shop.store.max_offset(TIMER_TOPIC) > 9) == is_begun
    shop.clock.now_ms = LAST_MS + 60_000
    shop.run()
    assert shop.bodies() == [b"y"]


@pytest.mark.slow
def test_what_cancels_is_named_in_its_own_second_while_the_message_is(shop: TimerShop) -> None:
    """It was named in an earlier one, at which it was to be put again, and the machine slept until the message was nearly due."""
    rolled_and_cancelled(shop)
    shop.store.put("orders", b"z", deliver_at=LAST_MS + 950)
    shop.run()
    shop.clock.now_ms = LAST_MS + 100
    shop.run()
    assert shop.timers.read_ms == LAST_MS
    shop.kill()
    shop.open()
    shop.run()
    shop.run(after_ms=10_000)
    assert shop.bodies() == [b"y", b"z"]


@pytest.mark.slow
def test_a_rolled_message_that_was_cancelled_stays_so_when_both_seconds_come_together(
    shop: TimerShop,
) -> None:
    """It was put to the timer topic again after what cancels it had been handled, and delivered."""
    receipt = shop.put(b"x", 3 * DAY)
    shop.put(b"y", 3 * DAY)
    shop.run()
    shop.run(after_ms=1500)
    shop.close()
    shop.clock.now_ms += 3 * DAY // 2
    assert shop.open().cancel_delayed(receipt)
    shop.close()
    shop.clock.now_ms += 3 * DAY
    shop.open()
    assert len(shop.store.delayed()) == 1
    for _ in range(3):
        shop.run(after_ms=1000)
    assert shop.bodies() == [b"y"]


@pytest.mark.slow
def test_what_cancels_is_handled_before_a_message_of_a_second_that_is_not_opened_yet(
    shop: TimerShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_delivery, "_DUE_MAX", 3)
    monkeypatch.setattr(timer_delivery, "_COUNT_MAX", 2)
    receipts = [shop.put(b"%d" % number, 500 * number + 1) for number in range(12)]
    shop.run(after_ms=1)
    shop.run(after_ms=1000)
    assert all(shop.store.cancel_delayed(receipt) for receipt in receipts[4:])
    shop.kill()
    shop.clock.now_ms += 60_000
    shop.open()
    for _ in range(9):
        shop.run(after_ms=1000)
    assert set(shop.bodies()) == {b"0", b"1", b"2", b"3"}


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
