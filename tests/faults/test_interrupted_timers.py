"""Ctrl-C in calls that look at messages which wait for a time, by a program that goes on: each comes once, at its time."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.faults import interrupts
from tests.faults.interrupts import everywhere
from tests.lanes import rounds

from penstock import Message, Receipt, Store
from penstock.testing import ManualClock, ManualWorkers, open_store

COUNT = 4
# Every so many places of a job; at night at every single one.
STEP = rounds(gate=9, night=1)
WORKER = "penstock-timers"
Job = Callable[[Store, list[Receipt]], object]

JOBS: dict[str, Job] = {
    "delayed": lambda store, _: store.delayed(),
    "cancel": lambda store, receipts: store.cancel_delayed(receipts[1]),
    "summary": lambda store, _: store.lowlevel.summary(),
}


def run(workers: ManualWorkers, clock: ManualClock, ms: int) -> None:
    for _ in range(ms // 500):
        clock.now_ms += 500
        while WORKER in workers.by_name and workers.run(WORKER) == 0:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("waited_ms", [0, 2000, 5000], ids=["new", "saved", "in-its-second"])
def test_an_interrupted_call_loses_and_doubles_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, waited_ms: int
) -> None:
    """A message that was taken in when Ctrl-C came was taken in again, and delivered twice."""
    monkeypatch.setattr(interrupts, "OURS", ("/penstock_messaging/timers/",))
    for interrupt in everywhere(STEP):
        clock, workers = ManualClock(), ManualWorkers()
        store = open_store(tmp_path / f"store-{interrupt.number}", clock=clock, spawn=workers)
        receipts = store.put_many([Message("orders", b"%d" % n, queue=0, delay=5.4) for n in range(COUNT)])  # fmt: skip
        run(workers, clock, waited_ms)
        receipts = [*receipts, store.put("orders", b"last", queue=0, delay=5.4)]
        interrupt.during(partial(JOBS[job], store, receipts))
        run(workers, clock, 8000)
        bodies = [message.body for message in store.scan("orders")]
        expected = [b"0", b"1", b"2", b"3", b"last"]
        if job == "cancel" and b"1" not in bodies:
            expected.remove(b"1")
        assert sorted(bodies) == expected, f"after an interrupt at {interrupt.place}"
        assert store.delayed() == []
        store.close()
