"""Chains of units: how they are linked, and which units are in the last one of each second."""

import numpy as np
import pytest

from penstock_messaging.timers.timer_units import TimerUnit, rows_of
from penstock_messaging.timers.unit_chains import (
    empty_slots,
    firsts,
    lasts,
    link,
    members,
    slots_ms,
    slots_of,
)


def array(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)


def test_units_are_linked_by_second_in_the_order_of_the_log() -> None:
    rows = rows_of(
        [
            TimerUnit(at, 0, 9, kind, 1000, 0)
            for at, kind in ((5000, 1), (4000, 1), (5000, 5), (5000, 1))
        ]
    )
    slots = empty_slots(slots_ms(rows))
    assert slots["second"].tolist() == [4, 5]
    link(slots_ms(rows), array(0, 52, 104, 156), rows, slots)
    assert rows["previous"].tolist() == [-1, -1, 0, 104]
    assert slots.tolist() == [(4, 52, 52, 1, 0), (5, 0, 156, 1, 0)]
    link(array(5000), array(208), rows[:1], slots[1:])
    assert rows["previous"][0] == 156
    assert slots[1].tolist() == (5, 0, 208, 2, 0)
    assert slots_of(array(), array(), np.empty(0, np.int32)).tolist() == []


@pytest.mark.parametrize(
    ("previous", "found", "is_right"),
    [
        ((-1, 0, 52, 104), [0, 1, 2, 3], True),
        ((-1, 0, -1, 104), [2, 3], True),
        # The first of them is gone with its file.
        ((-5, 0, 52, 104), [0, 1, 2, 3], False),
        ((-1, 0, 0, 104), [0, 1, 2, 3], False),
        ((-1, 0, 104, 104), [0, 1, 2, 3], False),
        ((-1, 0, 156, 156), [0, 1, 2, 3], False),
        ((7, 7, 7, 7), [0, 1, 2, 3], False),
        # What is wrong in an earlier chain does not matter.
        ((-1, 7, -1, 104), [2, 3], True),
    ],
)
def test_the_last_chain_of_a_second_counts(
    previous: tuple[int, ...], found: list[int], is_right: bool
) -> None:
    seconds, positions = array(1000, 1000, 1000, 1000), array(0, 52, 104, 156)
    chosen, is_linked = members(seconds, positions, array(*previous), 0)
    assert (chosen.tolist(), is_linked) == (found, is_right)


def test_a_chain_may_begin_in_a_file_that_is_gone() -> None:
    chosen, is_linked = members(array(1000, 1000), array(520, 572), array(52, 520), 520)
    assert (chosen.tolist(), is_linked) == ([0, 1], True)
    assert members(array(), array(), array(), 0)[1]


def test_firsts_and_lasts_of_values() -> None:
    assert firsts(array(1, 1, 2)).tolist() == [True, False, True]
    assert lasts(array(5, 3, 5, 4)).tolist() == [1, 2, 3]
    assert lasts(array()).tolist() == []


def test_a_second_that_no_clock_has_is_long_ago() -> None:
    rows = rows_of([TimerUnit(1500, 0, 9, 1, 0, 0)])
    assert slots_ms(rows).tolist() == [1000]
    rows["enqueue_ms"] = (1 << 63) - 1
    assert slots_ms(rows)[0] < 0
