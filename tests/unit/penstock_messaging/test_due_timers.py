"""What is due, in its order."""

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_messaging.timers.due_timers import (
    DueTimers,
    SecondColumns,
    is_later,
)
from penstock_messaging.timers.timer_message import Timer
from penstock_messaging.timers.waiting_timers import WAITS, WaitingTimer


def entry(log_offset: int, slot_ms: int = 5000, size: int = 10) -> WaitingTimer:
    return WaitingTimer(slot_ms, log_offset, size, WAITS, 0)


def second_of(slot_ms: int, timers: list[tuple[int, int]]) -> SecondColumns:
    """Return a second of messages with these log offsets and times."""
    second = SecondColumns(slot_ms)
    for log_offset, due_ms in timers:
        second.add(entry(log_offset, slot_ms), due_ms, -log_offset)
    return second


def offsets(timers: DueTimers, now_ms: int, count: int = 99, size: int = 999) -> list[int]:
    return [each.entry.log_offset for each in timers.take(now_ms, count, size)]


@pytest.mark.parametrize("is_late", [False, True])
def test_they_are_taken_when_due_and_in_the_order_in_which_they_came(is_late: bool) -> None:
    due, timers = DueTimers(), [*enumerate((5500, 5001, 5500, 5001, 5900))]
    if is_late:
        for number, due_ms in timers:
            due.add(entry(number), due_ms)
    else:
        due.add_second(second_of(5000, timers))
    assert offsets(due, 5000) == []
    assert offsets(due, 5500) == [1, 3, 0, 2]
    assert [each.entry.log_offset for each in due] == [4]
    assert len(due) == 1


TIMES = st.lists(st.integers(5001, 5010), max_size=8)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), TIMES), max_size=5), st.integers(1, 4))
def test_seconds_and_what_is_late_are_merged(parts: list[tuple[bool, list[int]]], count: int) -> None:  # fmt: skip
    due, expected, number = DueTimers(), [], 0
    for is_late, times in parts:
        timers = [(number + at, due_ms) for at, due_ms in enumerate(times)]
        number += len(times)
        expected += [(due_ms, log_offset) for log_offset, due_ms in timers]
        if is_late:
            for log_offset, due_ms in timers:
                due.add(entry(log_offset), due_ms)
        else:
            due.add_second(second_of(5000, timers))
    assert sorted((each.due_ms, each.entry.log_offset) for each in due) == sorted(expected)
    found: list[object] = []
    while due:
        assert due.first_ms() == min(expected)[0] if not found else True
        taken = due.take(6000, count, 1 << 30)
        due.give_back(taken[1:])
        found.append(taken[0].entry.log_offset)
    assert found == [log_offset for _, log_offset in sorted(expected)]


def test_a_batch_has_limits_and_at_least_one_message() -> None:
    due = DueTimers()
    for number in range(5):
        due.add(entry(number, size=600), 5001)
    assert offsets(due, 6000, count=2, size=2000) == [0, 1]
    assert offsets(due, 6000, size=1300) == [2, 3]
    assert offsets(due, 6000, size=1) == [4]


def test_what_is_given_back_has_its_old_place() -> None:
    due = DueTimers()
    due.add_second(second_of(5000, [(1, 5001), (2, 5001)]))
    taken = due.take(6000, 1, 99)
    due.give_back(taken)
    assert offsets(due, 6000) == [1, 2]


def test_messages_of_a_second_can_be_removed() -> None:
    due = DueTimers()
    due.add_second(second_of(5000, [(0, 7001), (2, 7001)]))
    due.add_second(second_of(6000, [(1, 7002)]))
    due.add(entry(3, 6000), 7001)
    assert sorted(each.entry.log_offset for each in due.of_second(6000)) == [1, 3]
    assert set(due.slots_ms()) == {5000, 6000}
    assert [due.with_offset(each) is not None for each in range(5)] == [True] * 4 + [False]
    assert due.remove([1, 2, 77]) == 2
    assert len(due) == 2
    assert due.first_ms() == 7001
    assert offsets(due, 9000) == [0, 3]
    assert due.first_ms() is None


def test_the_last_one_may_be_added_a_second_time_after_an_interrupt() -> None:
    due = DueTimers()
    for log_offset in (1, 2, 2):
        due.add(entry(log_offset), 5001)
    assert offsets(due, 6000) == [1, 2]


def test_a_part_of_a_second_goes_on_in_its_own_second() -> None:
    """A broker may be configured to write parts of seconds; such a message was put again and again until its time came."""
    assert not is_later(entry(1, slot_ms=5000), Timer(5500, 5900, b"t", b"k", b""), 5000)


@pytest.mark.slow
@pytest.mark.skipif(hasattr(sys, "gettotalrefcount"), reason="a debug build needs more memory")
def test_a_message_takes_little_memory() -> None:
    count = 20_000
    tracemalloc.start()
    due = DueTimers()
    due.add_second(second_of(5000, [(number, 5001 + number % 999) for number in range(count)]))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / count < 60
