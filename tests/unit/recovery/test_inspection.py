"""Looking before opening: whom to believe, and that nothing is changed by it."""

from pathlib import Path
from random import Random

import pytest

from penstock.durability.written_ranges import known_ranges
from penstock.errors import CorruptionError
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import OpenState, inspect_store, torn_end
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, messages, open_store
from penstock.testing.kit import SMALL
from penstock.testing.platter import Survival

ROOT = Path("/store")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(clock: ManualClock) -> SimulatedDisk:
    return SimulatedDisk(clock=clock)


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock) -> Store:
    made = open_store(ROOT, files=disk, clock=clock, spawn=ManualWorkers(), retention=[])
    made.put_many(messages(50))
    return made


def inspected(disk: SimulatedDisk) -> OpenState:
    log = SegmentedLog(disk, ROOT / "commitlog", SMALL.segment_bytes, mapped=False)
    return inspect_store(disk, ROOT, log, ["consume-queue", "hash-index"], is_new=False)


def killed(disk: SimulatedDisk, clock: ManualClock) -> SimulatedDisk:
    return SimulatedDisk.after(disk.image(), Survival.PROCESS, Random(0), clock=clock)


def test_a_store_that_another_program_opened_since_is_foreign(
    disk: SimulatedDisk, store: Store, clock: ManualClock
) -> None:
    store.close()
    clock.now_ms += 5
    disk.write_whole(ROOT / "lock", b"java")
    found = inspected(disk)
    assert (found.is_ours, found.is_still_ours, found.is_clean) == (False, False, False)
    assert found.end.offset == inspected(disk).end.offset > 0


def test_looking_changes_nothing(disk: SimulatedDisk, store: Store, clock: ManualClock) -> None:
    crashed = killed(disk, clock)
    before = crashed.image()
    inspected(crashed)
    assert crashed.image() == before


def test_a_log_that_is_shorter_than_what_was_durable_is_corruption(
    disk: SimulatedDisk, store: Store, clock: ManualClock
) -> None:
    store.put_many(messages(800))
    store.flush()
    crashed = killed(disk, clock)
    names = crashed.entries(ROOT / "commitlog")
    assert len(names) > 1
    for entry in names[1:]:
        crashed.remove(entry.path)
    with pytest.raises(CorruptionError):
        inspected(crashed)


def test_the_torn_end_is_that_of_a_crashed_log_and_of_no_other(
    disk: SimulatedDisk, store: Store, clock: ManualClock
) -> None:
    end = store.stats()["log_end_offset"]

    def torn(of: SimulatedDisk) -> int | None:
        log = SegmentedLog(of, ROOT / "commitlog", SMALL.segment_bytes, mapped=False)
        log.load(repair=False)
        ranges = known_ranges(of, ROOT, log)
        log.coverage = ranges.coverage
        return torn_end(of, ROOT, log, ranges)

    crashed = killed(disk, clock)
    assert torn(crashed) is None, "the log ends in a record"
    path = crashed.entries(ROOT / "commitlog")[0].path
    data = bytearray(crashed.read_whole(path))
    data[end : end + 9] = b"torn tail"
    crashed.write_whole(path, bytes(data))
    assert torn(crashed) == end
    crashed.remove(ROOT / "abort")
    assert torn(crashed) is None, "the next open for writing does not cut a log that was closed"
