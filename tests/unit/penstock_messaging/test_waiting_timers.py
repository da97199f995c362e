"""What waits, in memory."""

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_messaging.timers.waiting_timers import (
    CANCELS,
    ROLLS,
    WAITS,
    WaitingTimer,
    WaitingTimers,
)

ENTRIES = st.builds(
    lambda second, age, offset, size, kind: WaitingTimer(
        second * 1000, offset, size, kind, (second - age) * 1000
    ),
    st.integers(1_000_000, 1_000_020), st.integers(0, 172_800), st.integers(0, 1 << 62),
    st.integers(0, (1 << 31) - 1), st.sampled_from([WAITS, WAITS | ROLLS, WAITS | CANCELS]),
)  # fmt: skip


@given(st.lists(ENTRIES, max_size=60, unique_by=lambda entry: entry.log_offset))
def test_what_is_added_is_taken_second_by_second_in_its_order(entries: list[WaitingTimer]) -> None:
    waiting = WaitingTimers()
    for entry in entries:
        waiting.add(entry)
    in_order = sorted(entries, key=lambda entry: entry.slot_ms)
    assert list(waiting) == in_order
    taken: list[object] = []
    while not waiting.is_empty:
        first_ms = waiting.first_ms()
        assert first_ms is not None
        assert list(waiting.of_second(first_ms)) == [e for e in in_order if e.slot_ms == first_ms]
        taken += waiting.first()
        waiting.drop_first()
    assert taken == in_order
    assert (len(waiting), waiting.first_ms()) == (0, None)


def test_a_removed_entry_is_gone_and_its_second_stays() -> None:
    waiting = WaitingTimers()
    entry = WaitingTimer(5000, 1, 10, WAITS, 0)
    assert not waiting.remove(entry)
    waiting.add(entry)
    assert not waiting.remove(entry._replace(log_offset=2))
    # A packed number is no log offset.
    assert waiting.with_offset(entry.log_offset) == entry
    assert waiting.with_offset(5 << 31) is None
    assert waiting.with_offset(entry.log_offset, 5000) == entry
    assert waiting.with_offset(entry.log_offset, 6000) is None
    assert waiting.remove(entry)
    assert len(waiting) == 0
    assert list(waiting.first()) == []
    waiting.drop_first()
    assert waiting.first_ms() is None


def test_the_last_entry_may_be_added_a_second_time_after_an_interrupt() -> None:
    waiting = WaitingTimers()
    for log_offset in (1, 2, 2):
        waiting.add(WaitingTimer(5000, log_offset, 10, WAITS, 0))
    assert [entry.log_offset for entry in waiting] == [1, 2]
    assert len(waiting) == 2


def test_an_age_that_no_entry_can_have_does_not_spoil_the_others_fields() -> None:
    waiting = WaitingTimers()
    for number, enqueue_ms in enumerate((-(1 << 62), 1 << 60)):
        waiting.add(WaitingTimer(5000, number, (1 << 31) - 1, WAITS | ROLLS, enqueue_ms))
    assert [(e.log_offset, e.size, e.kind) for e in waiting] == [
        (n, (1 << 31) - 1, 3) for n in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.skipif(hasattr(sys, "gettotalrefcount"), reason="a debug build needs more memory")
def test_a_message_takes_little_memory() -> None:
    """A million messages over three days are to take at most 100 MB."""
    count = 20_000
    tracemalloc.start()
    waiting = WaitingTimers()
    for number in range(count):
        slot_ms = 1_700_000_000_000 + number * 5003 % count // 4 * 1000
        waiting.add(WaitingTimer(slot_ms, number * 300, 300, WAITS, slot_ms - 60_000))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / count < 100
