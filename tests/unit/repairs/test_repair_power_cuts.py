"""A repair, and the power fails: at its end nothing of it is lost, within it nothing of the store."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conftest import power_cut
from tests.lanes import examples

import penstock
from penstock.testing import KilledError, ManualClock, ManualWorkers, SimulatedDisk, open_store
from penstock.testing.kit import SMALL, messages
from penstock.testing.platter import Survival
from penstock_tools.repairs.repair import RepairReport

ROOT = Path("/s")
COUNT = 900


def repaired(disk: SimulatedDisk) -> RepairReport:
    sizes: dict[str, Any] = {
        "geometry.segment_bytes": SMALL.segment_bytes, "geometry.queue_entries": SMALL.queue_entries,
        "geometry.index_slots": SMALL.index_slots, "geometry.index_entries": SMALL.index_entries,
    }  # fmt: skip
    return penstock.repair(
        ROOT, apply=True, quarantine=True, files=disk, clock=ManualClock(), environ={}, **sizes, retention=[],
    )  # fmt: skip


def lost_queue(disk: SimulatedDisk) -> None:
    for entry in disk.entries(ROOT / "consumequeue" / "topic-0" / "1"):
        disk.remove(entry.path)


def wrong_entries(disk: SimulatedDisk) -> None:
    file = disk.open(disk.entries(ROOT / "consumequeue" / "topic-1" / "0")[0].path, writable=True)
    file.pwrite(b"\x7f" * 400, 100)
    file.close()


def lost_index_and_marks(disk: SimulatedDisk) -> None:
    for folder in (ROOT / "index", ROOT / "penstock"):
        for entry in disk.entries(folder):
            if entry.is_file:
                disk.remove(entry.path)
    disk.remove(ROOT / "checkpoint")


def corrupt_record(disk: SimulatedDisk) -> None:
    file = disk.open(disk.entries(ROOT / "commitlog")[1].path, writable=True)
    file.pwrite(b"\xa5\x5a", 95)
    file.close()


DAMAGES: list[Callable[[SimulatedDisk], None]] = [
    lost_queue, wrong_entries, lost_index_and_marks, corrupt_record,
]  # fmt: skip


def make(damage: Callable[[SimulatedDisk], None]) -> SimulatedDisk:
    """Return a disk with a closed store that was damaged; all of it is on the medium."""
    disk = SimulatedDisk()
    with open_store(ROOT, files=disk, spawn=ManualWorkers(), retention=[]) as store:
        store.put_many(messages(COUNT))
    damage(disk)
    return SimulatedDisk.after(disk.image(), Survival.ALL, Random(0))


def bodies(store: Any) -> set[tuple[str, int, int, bytes]]:
    return {
        (m.topic, m.queue, m.queue_offset, m.body)
        for t in store.topics(system=True)
        for m in store.scan(t)
    }


def check(disk: SimulatedDisk) -> str:
    """Open the store, which has all messages but a quarantined one, and nothing wrong; returns the state it was in."""
    with open_store(ROOT, files=disk, spawn=ManualWorkers(), retention=[]) as store:
        assert store.recovery is not None
        found = list(store.verify(deep=True))
        assert all(finding.is_note for finding in found)
        assert len(bodies(store)) == COUNT - len(found)
        return store.recovery.state


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_after_a_power_cut_a_repair_is_there(damage: Callable[[SimulatedDisk], None]) -> None:
    disk = make(damage)
    assert repaired(disk).steps
    cut = power_cut(disk)
    assert not repaired(power_cut(disk)).steps
    assert check(cut) == "clean"


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_killed_writer_had_not_synced_a_repair_syncs(
    damage: Callable[[SimulatedDisk], None],
) -> None:
    """After it the store is marked as cleanly closed, so no later open looks for what is not on the disk."""
    disk, workers = SimulatedDisk(), ManualWorkers()
    store = open_store(ROOT, files=disk, spawn=workers, retention=[], flush="none")
    store.put_many(messages(COUNT))
    workers.run("penstock-follow")
    damage(disk)
    killed = SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0))
    assert repaired(killed).steps
    assert check(power_cut(killed)) == "clean"
    store.close()


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repair_that_is_cut_short_is_made_again(damage: Callable[[SimulatedDisk], None]) -> None:
    whole = make(damage)
    count_before = whole.plan.total
    repaired(whole)
    calls = whole.plan.total - count_before
    assert calls > 20
    for at in sorted(Random(1).sample(range(1, calls + 1), min(examples(20), calls))):
        disk = make(damage)
        disk.plan.die_at(at)
        with pytest.raises(KilledError):
            repaired(disk)
        cut = SimulatedDisk.after(disk.image(), Survival.PAGES, Random(at))
        repaired(cut)
        assert check(cut) in {"clean", "abnormal"}
