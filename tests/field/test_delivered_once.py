"""What was delivered comes once, also after a kill before the progress was saved."""

import errno
from pathlib import Path
from shutil import copytree

import pytest

from penstock import Message
from penstock.contracts.messaging import PutOptions
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, open_store
from penstock_messaging.delays.schedule import delivered

LEVELS, TIMERS = "penstock-deliver", "penstock-timers"


def killed(root: Path) -> Path:
    """Return a copy of the store's folder as it is now: what a SIGKILL of its process leaves."""
    return copytree(root, root.with_name(f"{root.name}-killed"))


@pytest.mark.parametrize("delay", [PutOptions(delay_level=1), PutOptions(delay=1)])
def test_messages_that_are_all_alike_come_as_often_as_they_were_put(
    delay: PutOptions, tmp_path: Path
) -> None:
    """Some were delivered and saved, some delivered, and some wait: copies of the first are not taken for those of the last."""
    clock, workers = ManualClock(), ManualWorkers()
    root = tmp_path / "store"
    with open_store(root, clock=clock, spawn=workers) as store:
        store.create_topic("t", queues=1)
        worker = LEVELS if "delay_level" in delay else TIMERS
        for _ in range(3):
            store.put("t", b"tick", **delay)
        for _ in range(3):
            clock.now_ms += 1000
            workers.run(worker)
        for _ in range(2):
            store.put("t", b"tick", **delay)
        clock.now_ms += 2000
        workers.run(worker)
        for _ in range(4):
            store.put("t", b"tick", **delay)
        assert len(list(store.scan("t"))) == 5
        root = killed(root)
    with open_store(root, clock=clock, spawn=workers) as store:
        for _ in range(3):
            workers.run(worker)
            clock.now_ms += 1000
        assert len(list(store.scan("t"))) == 9


def test_more_than_is_delivered_at_once_comes_once_as_well(tmp_path: Path) -> None:
    clock, workers = ManualClock(), ManualWorkers()
    root = tmp_path / "store"
    with open_store(root, clock=clock, spawn=workers) as store:
        store.put_many([Message("t", b"%d" % n, queue=0, delay_level=1) for n in range(2500)])
        clock.now_ms += 1000
        for _ in range(3):
            workers.run(LEVELS)
        assert store.max_offset("t", 0) == 2500
        root = killed(root)
    with open_store(root, clock=clock, spawn=workers) as store:
        for _ in range(4):
            clock.now_ms += 1
            workers.run(LEVELS)
        assert store.max_offset("t", 0) == 2500


def test_what_a_broker_counts_as_delivered_is_not_taken_for_what_waits(tmp_path: Path) -> None:
    """Its table does not say where the log ended; two of four messages that are all alike were never delivered."""
    clock, workers = ManualClock(), ManualWorkers()
    root = tmp_path / "store"
    with open_store(root, clock=clock, spawn=workers) as store:
        store.put_many([Message("t", b"tick", queue=0, delay_level=1) for _ in range(4)])
        waiting = store.read("SCHEDULE_TOPIC_XXXX", 0, 0, 2).messages
        store.lowlevel.put_copies([delivered(message) for message in waiting])
        store.flush()
        root = killed(root)
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:2}}')
    with open_store(root, clock=clock, spawn=workers) as store:
        clock.now_ms += 1000
        workers.run(LEVELS)
        assert store.max_offset("t", 0) == 4


def test_a_copy_that_was_recognised_is_recognised_again_when_the_round_is_repeated(
    tmp_path: Path,
) -> None:
    clock, workers, files = ManualClock(), ManualWorkers(), FaultyFiles()
    root = tmp_path / "store"
    with open_store(root, clock=clock, spawn=workers) as store:
        store.put_many([Message("t", b"%d" % n, queue=0, delay_level=1) for n in range(2)])
        clock.now_ms += 1000
        workers.run(LEVELS)
        assert store.max_offset("t", 0) == 2
        store.put("t", b"2", queue=0, delay_level=1)
        root = killed(root)
    with open_store(root, clock=clock, spawn=workers, files=files, write="file") as store:
        clock.now_ms += 1000
        files.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
        workers.run(LEVELS)
        assert store.max_offset("t", 0) == 2, "the goal of this test"
        clock.now_ms += 2000
        workers.run(LEVELS)
        assert [each.body for each in store.scan("t")] == [b"0", b"1", b"2"]
