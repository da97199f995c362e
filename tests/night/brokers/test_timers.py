"""Messages with a time in the directories of real brokers: those that saved nothing, that do not know them, and that run."""

import time
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from tests.interop.brokers import sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker
from tests.interop.takeover import opened
from tests.interop.timers import (
    HOUR_MS,
    QUEUE,
    SETTINGS,
    TOPIC,
    WORKER,
    bodies,
    check_units,
    delivered_by,
    timer,
    wait_until_saved,
)
from tests.timer_topic import contents_of

from penstock.testing import ManualClock, ManualWorkers, open_store

GEOMETRY: dict[str, Any] = {**SMALL_GEOMETRY}


def test_a_broker_that_saved_nothing_before_its_end_makes_nothing_get_lost(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Only what it has delivered itself may come again."""
    broker = make_broker("5.3.3")
    broker.start(tmp_path, SETTINGS | {"timerFlushIntervalMs": 60_000})
    broker.create(TOPIC, 2)
    now_ms = int(time.time() * 1000)
    soon, hours = [f"soon {n}" for n in range(3)], [f"hour {n}" for n in range(30)]
    broker.send(*(timer(body, now_ms + 1500) for body in soon))
    broker.send(*(timer(body, now_ms + HOUR_MS) for body in hours))
    delivered_by(broker, set(soon))
    broker.kill()
    clock, workers = ManualClock(int(time.time() * 1000)), ManualWorkers()
    with open_store(tmp_path, clock=clock, spawn=workers, **GEOMETRY) as store:
        for _ in range(4):
            workers.run(WORKER)
            clock.now_ms += HOUR_MS
        found = bodies(store)
    assert [found[body] for body in hours] == [1] * len(hours)
    assert all(1 <= found[body] <= 2 for body in soon)


def test_a_broker_of_4_9_leaves_what_waits(make_broker: MakeBroker, tmp_path: Path) -> None:
    clock, workers = ManualClock(int(time.time() * 1000)), ManualWorkers()
    with open_store(tmp_path, clock=clock, spawn=workers, **GEOMETRY) as store:
        for number in range(3):
            store.put(TOPIC, b"%d" % number, queue=QUEUE, delay=HOUR_MS / 1000 + 0.7 * number)
        workers.run(WORKER)
        clock.now_ms += 1500
        workers.run(WORKER)
    before = contents_of(tmp_path)
    broker = make_broker("4.9.7")
    broker.start(tmp_path)
    broker.create(TOPIC, 2)
    broker.send(sent(TOPIC, b"plain", QUEUE))
    assert broker.bodies(TOPIC, QUEUE) == [b"plain"]
    broker.stop()
    assert contents_of(tmp_path) == before
    with open_store(tmp_path, clock=clock, spawn=workers, **GEOMETRY) as store:
        clock.now_ms += HOUR_MS + 5000
        for _ in range(3):
            workers.run(WORKER)
        assert [message.body for message in store.scan(TOPIC, queue=QUEUE)] == [
            b"plain",
            b"0",
            b"1",
            b"2",
        ]


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_a_broker_delivers_nothing_that_was_cancelled_before_a_kill(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """Penstock is killed as soon as the call has returned, and the broker starts after the message was due."""
    clock, workers = ManualClock(int(time.time() * 1000) - 60_000), ManualWorkers()
    with open_store(tmp_path / "store", clock=clock, spawn=workers, **GEOMETRY) as store:
        receipts = [store.put(TOPIC, b"%d" % n, queue=QUEUE, delay=9.5) for n in range(4)]
        store.put(TOPIC, b"later", queue=QUEUE, delay=13.5)
        for _ in range(3):
            workers.run(WORKER)
            clock.now_ms += 1000
        for receipt in receipts[:2]:
            assert store.cancel_delayed(receipt)
        copytree(tmp_path / "store", tmp_path / "killed")
    broker = make_broker(version)
    broker.start(tmp_path / "killed", {"timerFlushIntervalMs": 500})
    broker.create(TOPIC, 2)
    assert set(delivered_by(broker, {"2", "3", "later"})) == {"2", "3", "later"}


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_what_waits_in_a_brokers_directory_is_listed(
    version: str, make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker(version)
    broker.start(tmp_path, SETTINGS)
    broker.create(TOPIC, 2)
    now_ms = int(time.time() * 1000)
    due_ms = [now_ms + HOUR_MS + 777 * number for number in range(25)]
    broker.send(*(timer(str(due), due) for due in due_ms))
    wait_until_saved(tmp_path, int(time.time() * 1000))
    with opened(tmp_path, read_only=True) as store:
        assert [each.due_ms for each in store.delayed()] == due_ms, "while the broker runs"
    broker.stop()
    with opened(tmp_path, read_only=True) as store:
        check_units(store, tmp_path)
        found = [(each.due_ms, store.get(each.message_id).body) for each in store.delayed()]
        assert found == [(due, b"%d" % due) for due in due_ms]
