"""One directory with timer messages goes between a broker and Penstock, closed or killed: each is delivered once, by whoever has it.

What waits for hours is delivered by Penstock in the end, with a clock of the test. What comes a few seconds after it was sent is
handed on: the next one delivers it, unless the machine is so slow that it has come before. Only what a broker, or a process that was
killed, has delivered in its last second may come again: a broker saves its progress before its delivery ends.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.interop.brokers import Broker
from tests.interop.javastore import SMALL_GEOMETRY
from tests.interop.jvms import MakeBroker
from tests.interop.programs import run_program
from tests.interop.takeover import opened
from tests.interop.timers import (
    HOUR_MS,
    SETTINGS,
    TOPIC,
    WORKER,
    bodies,
    check_units,
    delivered_by,
    records_of_broker,
    records_of_penstock,
    timer,
    wait_until_saved,
)
from tests.timer_topic import contents_of

from penstock.testing import ManualClock, ManualWorkers, open_store

ROLLED_MS = 60 * HOUR_MS
GEOMETRY: dict[str, Any] = {**SMALL_GEOMETRY}


class Story:
    """What was put and delivered so far in one directory.

    Attributes:
        records: all records that were seen so far.
        delivered: the bodies that must be delivered by now, each once.
        handed: the bodies that the next one has to deliver, and that may be delivered by now.
        twice: those of them that a broker, or a process that was killed, had delivered by its end.
        waits: the bodies that wait for hours.
    """

    def __init__(self, root: Path, *, is_killed: bool) -> None:
        self.root = root
        self.is_killed = is_killed
        self.records: dict[tuple[str, int], dict[str, Any]] = {}
        self.delivered: set[str] = set()
        self.handed: set[str] = set()
        self.twice: set[str] = set()
        self.waits: set[str] = set()

    def see(self, found: dict[tuple[str, int], dict[str, Any]]) -> None:
        """Every record that was seen before is there, with every field."""
        for place, record in self.records.items():
            assert found[place] == record, place
        self.records = found

    def check(self, found: Counter[str]) -> None:
        assert self.delivered <= set(found) <= self.delivered | self.handed
        assert {body for body, count in found.items() if count > 1} <= self.twice

    def hand_on(self, soon: list[str], handed: list[str]) -> None:
        """Note what has to be delivered in the turn that begins, and what in the next one."""
        self.delivered |= {*soon, *self.handed}
        self.handed = {*handed}

    def look(self, *, may_repeat: bool) -> None:
        """See the same as the one that has just ended, and change nothing; that one may have delivered what is not saved."""
        before = contents_of(self.root)
        with opened(self.root, read_only=True) as store:
            self.see(records_of_penstock(store))
            found = bodies(store)
            if may_repeat:
                self.twice |= self.handed & set(found)
            self.check(found)
            check_units(store, self.root)
        assert contents_of(self.root) == before

    def broker_turn(self, broker: Broker, name: str, cancels: dict[str, str]) -> None:
        """Send what comes soon, what the next one has to deliver, and what waits for hours; cancel; end."""
        broker.start(self.root, SETTINGS)
        broker.create(TOPIC, 2)
        self.see(records_of_broker(broker))
        now_ms = int(time.time() * 1000)
        soon = [f"{name} soon {n}" for n in range(3)]
        handed = [f"{name} handed {n}" for n in range(5)]
        hours = [f"{name} hour {n}" for n in range(4)]
        messages = [timer(body, now_ms + 1500 + 300 * n) for n, body in enumerate(soon)]
        messages += [timer(body, now_ms + 6000 + 250 * n) for n, body in enumerate(handed)]
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
        self.hand_on(soon, handed)
        self.waits |= {hours[0], hours[2], hours[3], f"{name} rolled"}
        self.check(delivered_by(broker, self.delivered))
        wait_until_saved(self.root, int(time.time() * 1000))
        self.see(records_of_broker(broker))
        if self.is_killed:
            broker.kill()
        else:
            broker.stop()

    def penstock_turn(self, name: str, cancels: set[str]) -> None:
        """The same with a program that has the store open with Penstock."""
        soon = [f"{name} soon {n}" for n in range(3)]
        handed = [f"{name} handed {n}" for n in range(5)]
        puts = [(body, 501 + 300 * n) for n, body in enumerate(soon)]
        puts += [(body, 6000 + 251 * n) for n, body in enumerate(handed)]
        puts += [(f"{name} hour {n}", HOUR_MS + 401 * n) for n in range(4)]
        puts += [(f"{name} rolled", ROLLED_MS)]
        self.hand_on(soon, handed)
        self.waits |= {f"{name} hour {n}" for n in (0, 2, 3)} | {f"{name} rolled"}
        self.waits -= cancels
        plan = {"puts": puts, "cancels": [*cancels, f"{name} hour 1"], "wanted": [*self.delivered]}
        run_program(
            "tests.interop.timers", str(self.root), json.dumps(plan), is_killed=self.is_killed
        )

    def last_turn(self) -> None:
        """Penstock delivers what is left, with a clock that goes on by days."""
        clock, workers = ManualClock(int(time.time() * 1000) + 10_000), ManualWorkers()
        self.hand_on([], [])
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


@pytest.mark.night
@pytest.mark.parametrize("is_killed", [False, True])
def test_each_timer_is_delivered_once_by_who_has_the_directory(
    is_killed: bool, make_broker: MakeBroker, tmp_path: Path
) -> None:
    story = Story(tmp_path, is_killed=is_killed)
    story.broker_turn(make_broker("5.3.3"), "one", {})
    story.look(may_repeat=True)
    story.penstock_turn("two", {"one hour 2"})
    story.look(may_repeat=is_killed)
    (cancelled,) = (
        facts["properties"] for facts in story.records.values()
        if facts["topic"] != TOPIC and facts["body"] == "dHdvIGhvdXIgMw=="
    )  # fmt: skip
    story.waits.remove("two hour 3")
    cancels = {cancelled["UNIQ_KEY"]: cancelled["TIMER_DELIVER_MS"]}
    story.broker_turn(make_broker("5.3.3"), "three", cancels)
    story.look(may_repeat=True)
    story.last_turn()
