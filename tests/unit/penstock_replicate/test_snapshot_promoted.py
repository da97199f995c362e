"""A copy of the log with a snapshot of the files beside it goes on as its master did: nothing is lost, early, or delivered twice.

Each story puts on a master, lets it work, takes the log and a snapshot, and opens the copy as a master, with a later clock.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from penstock import Store
from penstock.files import Files
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_replicate.beside import apply, snapshot

SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000
LEVELS, TIMERS = "penstock-deliver", "penstock-timers"


@attrs.define
class Pair:
    """A master that a test works with, and the copy that is promoted."""

    root: Path
    clock: ManualClock = attrs.Factory(ManualClock)
    workers: ManualWorkers = attrs.Factory(ManualWorkers)
    opened: Store | None = None

    def open(self, **more: Any) -> Store:
        self.workers = ManualWorkers()
        self.opened = open_store(self.root, clock=self.clock, spawn=self.workers, **more)
        return self.opened

    @property
    def store(self) -> Store:
        return self.opened or self.open()

    def run(self, *, after_ms: int = 0, step_ms: int = 0) -> None:
        """Let time pass, in steps if given, and run both services until nothing is due."""
        end_ms = self.clock.now_ms + after_ms
        while True:
            self.clock.now_ms = min(self.clock.now_ms + (step_ms or after_ms), end_ms)
            for name in (LEVELS, TIMERS):
                while name in self.workers.by_name and self.workers.run(name) == 0:
                    pass
            if self.clock.now_ms == end_ms:
                return

    def promote(self, *, after_ms: int = 0) -> Store:
        """Kill the master, and open what a follower has: the log and the snapshot."""
        target = self.root.with_name(self.root.name + "-copy")
        self.store.flush()
        sides = snapshot(Files(), self.root)
        shutil.copytree(self.root / "commitlog", target / "commitlog")
        for name, data in sides.items():
            apply(Files(), target, name, data)
        self.close()
        self.root = target
        self.clock.now_ms += after_ms
        return self.open()

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()

    def bodies(self, topic: str = "orders") -> Counter[bytes]:
        queues = self.store.topics().get(topic, ())
        return Counter(m.body for queue in queues for m in self.store.scan(topic, queue))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path / "store")
    yield made
    made.close()


def once(*bodies: bytes) -> Counter[bytes]:
    return Counter(bodies)


def test_messages_with_a_delay_level_go_on(pair: Pair) -> None:
    for number, level in enumerate((1, 1, 3, 3, 5)):
        pair.store.put("orders", b"%d" % number, delay_level=level)
    pair.run(after_ms=2 * SECOND, step_ms=SECOND)
    # So that the progress of the first two is saved.
    pair.run(after_ms=2 * SECOND, step_ms=SECOND)
    assert pair.bodies() == once(b"0", b"1")
    pair.promote()
    pair.run()
    assert pair.bodies() == once(b"0", b"1"), "nothing comes early"
    pair.run(after_ms=7 * SECOND)
    assert pair.bodies() == once(b"0", b"1", b"2", b"3")
    pair.run(after_ms=HOUR)
    assert pair.bodies() == once(b"0", b"1", b"2", b"3", b"4")


def test_a_level_that_was_not_saved_is_delivered_again_and_not_lost(pair: Pair) -> None:
    """The master dies within the second after the delivery: only that second may come twice."""
    pair.store.put("orders", b"early", delay_level=1)
    pair.run(after_ms=SECOND)
    pair.run(after_ms=2 * SECOND, step_ms=SECOND)
    pair.store.put("orders", b"late", delay_level=1)
    pair.run(after_ms=SECOND)
    pair.promote(after_ms=HOUR)
    pair.run()
    found = pair.bodies()
    assert found[b"early"] == 1
    assert 1 <= found[b"late"] <= 2


def test_messages_with_a_time_go_on(pair: Pair) -> None:
    for number, delay_ms in enumerate((1500, 2500, 10_000, HOUR)):
        pair.store.put("orders", b"%d" % number, delay_ms=delay_ms)
    pair.run(after_ms=6 * SECOND, step_ms=SECOND)
    assert pair.bodies() == once(b"0", b"1")
    pair.promote()
    pair.run()
    assert pair.bodies() == once(b"0", b"1")
    pair.run(after_ms=3500)
    assert pair.bodies() == once(b"0", b"1"), "nothing comes early"
    pair.run(after_ms=2 * SECOND)
    assert pair.bodies() == once(b"0", b"1", b"2")
    pair.run(after_ms=HOUR)
    assert pair.bodies() == once(b"0", b"1", b"2", b"3")


def test_a_timer_that_is_due_while_there_is_no_master_is_delivered_after_it(pair: Pair) -> None:
    pair.store.put("orders", b"x", delay_ms=5 * SECOND)
    pair.run(after_ms=2 * SECOND, step_ms=SECOND)
    pair.promote(after_ms=HOUR)
    pair.run()
    assert pair.bodies() == once(b"x")


def test_a_cancelled_timer_stays_cancelled(pair: Pair) -> None:
    receipt = pair.store.put("orders", b"gone", delay_ms=10 * SECOND)
    pair.store.put("orders", b"kept", delay_ms=10 * SECOND)
    pair.run(after_ms=2 * SECOND, step_ms=SECOND)
    assert pair.store.cancel_delayed(receipt)
    pair.run(after_ms=2 * SECOND, step_ms=SECOND)
    pair.promote(after_ms=HOUR)
    pair.run()
    assert pair.bodies() == once(b"kept")


@pytest.mark.parametrize("is_rolled_before", [True, False])
def test_a_timer_that_waits_for_days_is_delivered_once(
    pair: Pair, *, is_rolled_before: bool
) -> None:
    """Such a message is put again on the way. The copy has no timer log, and must not take both for messages that wait."""
    pair.store.put("orders", b"rolled", delay_ms=3 * DAY - SECOND)
    pair.store.put("orders", b"soon", delay_ms=SECOND)
    pair.run(after_ms=5 * SECOND, step_ms=SECOND)
    if is_rolled_before:
        pair.run(after_ms=2 * DAY + HOUR, step_ms=6 * HOUR)
        pair.run(after_ms=5 * SECOND, step_ms=SECOND)
    assert pair.bodies() == once(b"soon")
    pair.promote()
    assert sum(1 for _ in pair.store.delayed()) == 1
    pair.run(after_ms=4 * DAY, step_ms=6 * HOUR)
    assert pair.bodies() == once(b"soon", b"rolled")


def test_prepared_messages_go_on(pair: Pair) -> None:
    store = pair.store
    store.prepare("orders", b"done", group="tellers").commit()
    store.prepare("orders", b"undone", group="tellers").rollback()
    store.prepare("orders", b"open", group="tellers")
    pair.promote()
    waiting = pair.store.prepared()
    assert len(waiting) == 1
    waiting[0].commit()
    assert pair.store.prepared() == []
    assert pair.bodies() == once(b"done", b"open")


def test_topics_and_groups_have_their_configuration(pair: Pair) -> None:
    store = pair.store
    store.create_topic("declared", queues=7)
    store.put("made", b"x", queue=2)
    pair.run(after_ms=2 * SECOND)
    pair.workers.run("penstock-topics")
    before = store.topic_configs()
    pair.promote()
    assert pair.store.topic_configs() == before
    assert pair.store.topic_configs()["made"].is_auto, "it still gets queues by putting to them"


def test_a_group_goes_on_where_it_was(pair: Pair) -> None:
    for number in range(10):
        pair.store.put("orders", b"%d" % number)
    pair.store.commit_offset("billing", "orders", offset=6)
    pair.promote()
    assert pair.store.committed_offset("billing", "orders") == 6
