"""The power is cut within the swap of new queues for old ones: an opening for writing ends it, whatever survived."""

from pathlib import Path
from random import Random

import pytest
from tests.spark.sinkstory import Place, World

from penstock.dispatch.rebuild import RebuildJournal
from penstock.durability.side_folder import SideFolder
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import Image, Survival

ROOT = Path("/root")


pytestmark = pytest.mark.usefixtures("quiet")


def world(disk: SimulatedDisk) -> World:
    return World(disk, Place(1))


def with_an_expired_queue() -> SimulatedDisk:
    """Return a disk with a store one queue of which has its end, and no message."""
    disk = SimulatedDisk(clock=ManualClock())
    disk.make_folder(ROOT)
    with world(disk).open(ROOT) as store:
        for _ in range(5):
            store.put("old", b"x" * 500, queue=0)
        for n in range(60):
            store.put("t", b"y" * 300, queue=n % 2)
        store.flush()
        store.topics()
        assert store.discard_before(log_offset=8192 * 2) == 2
        assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (5, 5)
    return disk


def copy(disk: SimulatedDisk, source: Path, target: Path) -> None:
    disk.make_folder_durably(target)
    for entry in disk.entries(source):
        if entry.is_folder:
            copy(disk, entry.path, target / entry.name)
        else:
            file = disk.create(target / entry.name)
            file.resize(entry.size)
            file.pwrite(disk.read_whole(entry.path), 0)
            file.sync_all()
            file.close()
    disk.sync_folder(target)


def swap(disk: SimulatedDisk) -> list[Image]:
    """Swap the queues for the same ones; returns the disk before each call, and after it."""
    lock = disk.lock(ROOT / "lock")
    assert lock is not None
    workshop = RebuildJournal(disk, ROOT)
    workshop.begin()
    copy(disk, ROOT / "consumequeue", workshop.new / "consumequeue")
    SideFolder(disk, ROOT).remove_clean()
    images: list[Image] = []
    disk.plan.watch = lambda *_: images.append(disk.image())
    workshop.put_in_place({"consumequeue", "consumequeue_ext"})
    disk.plan.watch = None
    lock.release()
    return [*images, disk.image()]


@pytest.mark.parametrize("survival", Survival)
def test_an_opening_ends_a_swap_that_was_cut_short(survival: Survival) -> None:
    images = swap(with_an_expired_queue())
    assert len(images) > 15
    for number, image in enumerate(images):
        clock = ManualClock(1_700_000_100_000)
        disk = SimulatedDisk.after(image, survival, Random(number), clock=clock)
        with world(disk).open(ROOT) as store:
            ends = [store.max_offset(*queue) for queue in (("old", 0), ("t", 0), ("t", 1))]
            assert ends == [5, 30, 30], number
            assert not list(store.verify())
        assert not disk.exists(ROOT / "penstock" / "repair" / "ready")
