"""The swap of a repair: old files until it is ready, new ones afterwards, whoever finishes it."""

import json
from pathlib import Path

import pytest

from penstock.dispatch.rebuild import RebuildJournal
from penstock.durability.side_folder import lock_mtime_ns
from penstock.testing import ManualClock, SimulatedDisk

ROOT = Path("/store")
REPAIR = ROOT / "penstock" / "repair"


def put(disk: SimulatedDisk, name: str, data: bytes) -> None:
    path = ROOT / name
    disk.make_folder_durably(path.parent)
    disk.write_whole(path, data)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(clock: ManualClock) -> SimulatedDisk:
    made = SimulatedDisk(clock=clock)
    for name, data in (("lock", b"lock"), ("index/old", b"old"), ("consumequeue/t/0/old", b"old")):
        put(made, name, data)
    return made


def begun(disk: SimulatedDisk) -> RebuildJournal:
    journal = RebuildJournal(disk, ROOT)
    journal.begin()
    return journal


def make_new(disk: SimulatedDisk) -> None:
    put(disk, "penstock/repair/new/index/new", b"new")


def test_strays_among_the_old_files_are_put_back(disk: SimulatedDisk) -> None:
    put(disk, "index/of-somebody-else", b"theirs")
    stray = ROOT / "index" / "of-somebody-else"
    journal = begun(disk)
    make_new(disk)
    assert journal.put_in_place(set(), [stray])
    assert disk.read_whole(stray) == b"theirs"


def test_what_was_made_before_another_program_wrote_is_thrown_away(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    begun(disk)
    make_new(disk)
    ready = {"made": ["index"], "gone": [], "lock_mtime_ns": lock_mtime_ns(disk, ROOT)}
    disk.write_whole(REPAIR / "ready", json.dumps(ready).encode())
    clock.now_ms += 1
    put(disk, "lock", b"java")
    RebuildJournal(disk, ROOT).finish()
    assert disk.read_whole(ROOT / "index" / "old") == b"old"
    assert not disk.exists(REPAIR / "new")


@pytest.mark.parametrize("name", ["..", "../../etc", "penstock", "", 3, "a/b"])
def test_a_hostile_journal_leads_nowhere(disk: SimulatedDisk, name: object) -> None:
    begun(disk)
    ready = {"made": [name], "gone": [name], "lock_mtime_ns": lock_mtime_ns(disk, ROOT)}
    disk.write_whole(REPAIR / "ready", json.dumps(ready).encode())
    disk.write_whole(REPAIR / "journal", json.dumps({"saved": name}).encode())
    journal = begun(disk)
    assert journal.saved.parent == ROOT / "penstock" / "saved"
    assert disk.exists(ROOT / "index" / "old")
    assert disk.is_folder(ROOT / "penstock")


def test_each_repair_saves_under_a_name_of_its_own_and_goes_on_with_that(
    disk: SimulatedDisk,
) -> None:
    first = begun(disk)
    first.save_bytes("a", b"1")
    first.save_bytes("a", b"2")
    assert disk.read_whole(first.saved / "a") == b"1", "what was saved first is original"
    assert begun(disk).saved == first.saved
    first.end()
    assert begun(disk).saved != first.saved
