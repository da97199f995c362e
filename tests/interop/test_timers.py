"""One directory with timer messages goes between a broker and Penstock, closed or killed: each is delivered once, by whoever has it.

What waits for hours is delivered by Penstock in the end, with a clock of the test. Only what a killed process has delivered in its
last second may come again, so each turn lasts for longer than that after its last delivery.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import Broker, sent
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.takeover import opened
from tests.interop.timers import (
    HOUR_MS,
    QUEUE,
    SETTINGS,
    TOPIC,
    delivered_by,
    records_of_broker,
    records_of_penstock,
    timer,
    wait_until_saved,
)
from tests.timer_topic import contents_of

from penstock import Store
from penstock.files import Files
from penstock.format.java_hash import java_hash
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_messaging.timers.timer_log import TimerLog
from penstock_messaging.timers.timer_message import timer_of
from penstock_messaging.timers.timer_queue import entry_of
from penstock_messaging.timers.timer_units import TimerUnit
from penstock_messaging.timers.unit_chains import slots_ms

GEOMETRY: dict[str, Any] = {**SMALL_GEOMETRY}
WORKER = "penstock-timers"
ROLLED_MS = 60 * HOUR_MS


class Story:
    """What was put and delivered so far in one directory.

    Attributes:
        records: all records that were seen so far.
        delivered: the bodies that must be delivered by now, each once.
        waits: the bodies that wait for hours.
    """

    def __init__(self, root: Path, *, is_killed: bool) -> None:
        self.root = root
        self.is_killed = is_killed
        self.records: dict[tuple[str, int], dict[str, Any]] = {}
        self.delivered: set[str] = set()
        self.waits: set[str] = set()

    def see(self, found: dict[tuple[str, int], dict[str, Any]]) -> None:
        """Every record that was seen before is there, with every field."""
        for place, record in self.records.items():
            assert found[place] == record, place
        self.records = found

    def check(self, found: Counter[str]) -> None:
        assert found == Counter(self.delivered)

    def broker_turn(
        self, broker: Broker, name: str, cancels: dict[str, str], handed: set[str]
    ) -> None:
        """Send what comes soon, what the next one has to deliver, and what waits for hours; cancel; end."""
        broker.start(self.root, SETTINGS)
        broker.create(TOPIC, 2)
        self.see(records_of_broker(broker))
        now_ms = int(time.time() * 1000)
        soon = [f"{name} soon {n}" for n in range(3)]
        handed_on = [f"{name} handed {n}" for n in range(5)]
        hours = [f"{name} hour {n}" for n in range(4)]
        messages = [timer(body, now_ms + 1500 + 300 * n) for n, body in enumerate(soon)]
        messages += [timer(body, now_ms + 9000 + 250 * n) for n, body in enumerate(handed_on)]
        messages += [timer(body, now_ms + HOUR_MS + 400 * n) for n, body in enumerate(hours)]
        messages += [timer(f"{name} rolled", now_ms + ROLLED_MS)]
        answers = broker.send(*messages)
        unique = dict(zip(hours, (each["unique_key"] for each in answers[8:12]), strict=True))
        own = timer("x", now_ms + HOUR_MS + 400, TIMER_DEL_UNIQKEY=f"{TOPIC}+{unique[hours[1]]}")
        others = [
            timer("x", int(due_ms), TIMER_DEL_UNIQKEY=f"{TOPIC}+{key}")
            for key, due_ms in cancels.items()
        ]
        broker.send(own, *others)
        self.delivered |= {*soon, *handed}
        self.waits |= {hours[0], hours[2], hours[3], f"{name} rolled"}
        self.check(delivered_by(broker, self.delivered))
        wait_until_saved(self.root, int(time.time() * 1000))
        self.see(records_of_broker(broker))
        if self.is_killed:
            broker.kill()
        else:
            broker.stop()

    def penstock_turn(self, name: str, cancels: set[str], handed: set[str]) -> None:
        """The same with a program that has the store open with Penstock."""
        soon = [f"{name} soon {n}" for n in range(3)]
        puts = [(body, 501 + 300 * n) for n, body in enumerate(soon)]
        puts += [(f"{name} handed {n}", 9000 + 251 * n) for n in range(5)]
        puts += [(f"{name} hour {n}", HOUR_MS + 401 * n) for n in range(4)]
        puts += [(f"{name} rolled", ROLLED_MS)]
        self.delivered |= {*soon, *handed}
        self.waits |= {f"{name} hour {n}" for n in (0, 2, 3)} | {f"{name} rolled"}
        self.waits -= cancels
        plan = {"puts": puts, "cancels": [*cancels, f"{name} hour 1"], "wanted": [*self.delivered]}
        with subprocess.Popen(
            [sys.executable, "-m", "tests.interop.timers", str(self.root), json.dumps(plan)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        ) as child:  # fmt: skip
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            if self.is_killed:
                child.kill()
            else:
                child.communicate("end\n", 60)
                assert child.returncode == 0

    def last_turn(self) -> None:
        """Penstock delivers what is left, with a clock that goes on by days."""
        clock, workers = ManualClock(int(time.time() * 1000) + 10_000), ManualWorkers()
        self.delivered |= {f"three handed {n}" for n in range(5)}
        with open_store(self.root, clock=clock, spawn=workers, **GEOMETRY) as store:
            self.see(records_of_penstock(store))
            workers.run(WORKER)
            self.check(bodies(store))
            for _ in range(4):
                clock.now_ms += 30 * HOUR_MS
                for _ in range(4):
                    workers.run(WORKER)
            self.delivered |= self.waits
            self.check(bodies(store))
            assert [finding.text for finding in store.verify()] == []


def bodies(store: Store) -> Counter[str]:
    return Counter(message.body.decode() for message in store.scan(TOPIC, QUEUE))


def unit_as_taken_in(store: Store, unit: TimerUnit) -> TimerUnit:
    """Return the unit that Penstock writes for the same record at the same time."""
    message = store.at(unit.log_offset)
    found = timer_of(message)
    entry = entry_of(message, found, unit.enqueue_ms)
    return TimerUnit(*entry, java_hash(found.topic.decode()))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_each_timer_is_delivered_once_by_who_has_the_directory(
    end: str, make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    story = Story(tmp_path, is_killed=end == "kill")
    story.broker_turn(make_broker("5.3.3"), "one", {}, set())
    before = contents_of(tmp_path)
    with open_store(tmp_path, read_only=True, **GEOMETRY) as store:
        story.see(records_of_penstock(store))
        check_units(store, tmp_path)
    assert contents_of(tmp_path) == before
    story.penstock_turn("two", {"one hour 2"}, {f"one handed {n}" for n in range(5)})
    with open_store(tmp_path, read_only=True, **GEOMETRY) as store:
        story.see(records_of_penstock(store))
        story.check(bodies(store))
        check_units(store, tmp_path)
        (cancelled,) = (
            facts["properties"] for facts in story.records.values()
            if facts["topic"] != TOPIC and facts["body"] == "dHdvIGhvdXIgMw=="
        )  # fmt: skip
    story.waits.remove("two hour 3")
    cancels = {cancelled["UNIQ_KEY"]: cancelled["TIMER_DELIVER_MS"]}
    story.broker_turn(make_broker("5.3.3"), "three", cancels, {f"two handed {n}" for n in range(5)})
    story.last_turn()


def test_a_broker_that_saved_nothing_before_its_end_makes_nothing_get_lost(
    make_broker: Callable[[str], Broker], tmp_path: Path
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


def test_a_broker_of_4_9_leaves_what_waits(
    make_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    clock, workers = ManualClock(int(time.time() * 1000)), ManualWorkers()
    with open_store(tmp_path, clock=clock, spawn=workers, **GEOMETRY) as store:
        for number in range(3):
            store.put(TOPIC, b"%d" % number, queue=QUEUE, delay_ms=HOUR_MS + 700 * number)
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
        assert [message.body for message in store.scan(TOPIC, QUEUE)] == [
            b"plain",
            b"0",
            b"1",
            b"2",
        ]


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_what_waits_in_a_brokers_directory_is_listed(
    version: str, make_broker: Callable[[str], Broker], tmp_path: Path
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


def check_units(store: Store, root: Path) -> None:
    """The units of both have the same fields, and name records as both take them in."""
    found = TimerLog(Files(), root).read()
    assert found.damage == ""
    for slot_ms, row in zip(slots_ms(found.units).tolist(), found.units, strict=True):
        _, _, kind, enqueue_ms, _, log_offset, size, topic_hash, _ = row.item()
        unit = TimerUnit(slot_ms, log_offset, size, kind, enqueue_ms, topic_hash)
        expected = unit_as_taken_in(store, unit)
        # What Penstock delivered or cancelled before its unit was saved is in a second that is over.
        assert unit.slot_ms == expected.slot_ms or unit.slot_ms < enqueue_ms + 5000
        assert unit._replace(slot_ms=0) == expected._replace(slot_ms=0)
