"""What is due, in its order."""

from penstock_messaging.timers.due_timers import DueTimers, due_in
from penstock_messaging.timers.timer_message import Timer
from penstock_messaging.timers.waiting_timers import WAITS, WaitingTimer


def entry(log_offset: int, slot_ms: int = 5000, size: int = 10) -> WaitingTimer:
    return WaitingTimer(slot_ms, log_offset, size, WAITS, 0)


def offsets(timers: DueTimers, now_ms: int, count: int = 99, size: int = 999) -> list[int]:
    return [each.entry.log_offset for each in timers.take(now_ms, count, size)]


def test_they_are_taken_when_due_and_in_the_order_in_which_they_came() -> None:
    due = DueTimers()
    for number, due_ms in enumerate((5500, 5001, 5500, 5001, 5900)):
        due.add(entry(number), due_ms)
    assert offsets(due, 5000) == []
    assert offsets(due, 5500) == [1, 3, 0, 2]
    assert [each.entry.log_offset for each in due] == [4]
    assert len(due) == 1


def test_a_batch_has_limits_and_at_least_one_message() -> None:
    due = DueTimers()
    for number in range(5):
        due.add(entry(number, size=600), 5001)
    assert offsets(due, 6000, count=2, size=2000) == [0, 1]
    assert offsets(due, 6000, size=1300) == [2, 3]
    assert offsets(due, 6000, size=1) == [4]


def test_what_is_given_back_has_its_old_place() -> None:
    due = DueTimers()
    due.add(entry(1), 5001)
    due.add(entry(2), 5001)
    taken = due.take(6000, 1, 99)
    due.give_back(taken)
    assert offsets(due, 6000) == [1, 2]


def test_messages_of_a_second_can_be_removed() -> None:
    due = DueTimers()
    for number in range(4):
        due.add(entry(number, slot_ms=5000 + 1000 * (number % 2)), 7001)
    assert [each.entry.log_offset for each in due.of_second(6000)] == [1, 3]
    assert due.remove([1, 2, 77]) == 2
    assert due.first() is not None
    assert offsets(due, 9000) == [0, 3]
    assert due.first() is None


def test_one_that_goes_on_waiting_is_handled_when_its_second_begins() -> None:
    timer = Timer(9000, 9500, b"t", b"k", b"")
    assert due_in(entry(1, slot_ms=5000), timer) == 5001
    assert due_in(entry(1, slot_ms=9000), timer) == 9500
