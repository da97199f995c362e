"""One load: what waits, and whether the log can be used as it is. More of it is in `test_timer_state`."""

import numpy as np
from tests.timer_topic import SECOND, START, TimerTopic, unit_of_message

from penstock_messaging.timers.timer_check import TimerCheck
from penstock_messaging.timers.timer_loading import Loading
from penstock_messaging.timers.timer_log import LogUnits
from penstock_messaging.timers.timer_units import TimerUnit, rows_of
from penstock_messaging.timers.unit_chains import empty_slots, link, slots_ms

HORIZON_MS = START + 100 * SECOND


def loading(topic: TimerTopic, units: list[TimerUnit], read_ms: int = START) -> Loading:
    rows = rows_of(units)
    positions = np.arange(len(rows), dtype=np.int64) * 52
    link(slots_ms(rows), positions, rows, empty_slots(slots_ms(rows)))
    check = TimerCheck(read_ms, 0, len(topic.records))
    made = Loading(topic, check, LogUnits(positions, rows, ""), HORIZON_MS)
    made.restore(unit_of_message)
    return made


def waiting(found: Loading) -> list[int]:
    return [int(offset) for offset in found.rows["log_offset"]]


def test_a_unit_too_far_ahead_is_read_from_its_record() -> None:
    topic = TimerTopic()
    unit = topic.put(START + 5 * SECOND)
    found = loading(topic, [unit._replace(slot_ms=HORIZON_MS)])
    assert [*found.rows["delay_ms"]] == [5 * SECOND]
    assert "1 messages that wait are not in the timer log" in found.problems[0]


def test_many_records_without_a_unit_get_one_so_that_they_are_not_read_each_time() -> None:
    topic = TimerTopic()
    for _ in range(1001):
        topic.put(START - 5 * SECOND)
    unit = topic.put(START + SECOND)
    found = loading(topic, [unit])
    assert (found.problems, found.is_whole, waiting(found)) == ([], False, [unit.log_offset])
    assert len(found.all_rows()) == 1002
    assert loading(topic, [unit, *([unit] * 0)]).newest == (unit.log_offset, unit.size)
