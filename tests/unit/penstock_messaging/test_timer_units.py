"""Units beside the entries of the timer topic."""

import numpy as np

from penstock.contracts.dispatcher import QueueEntries
from penstock_messaging.timers.timer_units import CLOSES, MatchedUnits, TimerUnit, match, rows_of
from penstock_messaging.timers.unit_chains import slots_ms


def entries(*found: tuple[int, int]) -> QueueEntries:
    columns = np.array(found, np.int64).reshape(-1, 2)
    return QueueEntries(columns[:, 0], columns[:, 1], np.zeros(len(columns), np.int64))


def matched(
    *offsets: int, size: int = 9, kind: int = 1, next_log_offset: int = 500
) -> MatchedUnits:
    rows = rows_of([TimerUnit(1000, offset, size, kind, 0, 0) for offset in offsets])
    return match(rows, entries((100, 9), (200, 9), (0, 0), (300, 9)), next_log_offset)


def test_a_unit_is_true_if_the_topic_has_its_record() -> None:
    found = matched(50, 100, 150, 300, 0, 500)
    assert found.is_true.tolist() == [False, True, False, True, False, False]
    assert found.is_old.tolist() == [True, False, False, False, True, False]
    assert found.kept == 4, "what is after the last true one is not taken in, or torn"
    assert found.missing.tolist() == [1], "an entry without a record is not missing"
    assert not matched(100, size=8).is_true.any()


def test_a_unit_that_only_closes_tells_nothing_of_its_record() -> None:
    found = matched(100, kind=CLOSES)
    assert found.is_true.tolist() == [True]
    assert found.missing.tolist() == [0, 1, 3]


def test_of_an_empty_topic_no_unit_is_true() -> None:
    rows = rows_of([TimerUnit(1000, 100, 9, 1, 0, 0)])
    found = match(rows, entries(), 500)
    assert (found.is_true.tolist(), found.is_old.tolist(), found.kept) == ([False], [True], 0)
    assert match(rows[:0], entries((100, 9)), 500).missing.tolist() == [0]


def test_a_delay_that_the_field_cannot_say_keeps_its_second() -> None:
    rows = rows_of(
        [TimerUnit(90 * 86_400_000, 1, 9, 1, 0, 0), TimerUnit(0, 1, 9, 1, 90 * 86_400_000, 0)]
    )
    assert slots_ms(rows).tolist() == [90 * 86_400_000, 0]
