"""A message that was put to the timer topic again on the way is known by its copy."""

from pathlib import Path
from typing import Any

from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.rolled_timers import RolledTimers
from penstock_messaging.timers.timer_message import rolls_of, timer_of

DAY, STEP = 86_400_000, 21_600_000


def rolled(store: Any) -> list[tuple[int, bool]]:
    copies = RolledTimers(store)
    return [(rolls_of(m), copies.has_copy(m, timer_of(m))) for m in store.scan(TIMER_TOPIC, 0)]


def test_a_message_has_a_copy_once_it_was_put_again(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    with open_store(tmp_path / "store", clock=clock, spawn=workers) as store:
        store.put("orders", b"long", delay_ms=3 * DAY)
        store.put("orders", b"as long", delay_ms=3 * DAY)
        store.put("orders", b"short", delay_ms=DAY)
        assert rolled(store) == [(0, False)] * 3
        for _ in range(11):
            clock.now_ms += STEP
            while workers.run("penstock-timers") == 0:
                pass
        assert rolled(store) == [(0, True), (0, True), (0, False), (1, False), (1, False)]
