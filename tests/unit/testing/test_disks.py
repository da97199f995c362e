"""The simulated disk: what is seen, what is durable, how full it is, and what a power cut leaves."""

import errno
import os
from pathlib import Path
from random import Random

import pytest

from penstock.files.file import File
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import PAGE_BYTES, ROOT, Inode, Platter, Survival, with_pages


def test_the_simulated_disk_is_full_when_it_is() -> None:
    page = 4096
    disk = SimulatedDisk(capacity=10 * page, clock=ManualClock())
    file = disk.create(Path("/a"))
    file.resize(100 * page)
    assert disk.free_bytes(Path("/")) == (0, 10 * page), "a hole takes no room"
    file.allocate_range(0, 6 * page)
    assert disk.free_bytes(Path("/")) == (6 * page, 4 * page)
    disk.others = 3 * page
    file.pwrite(b"x" * 100, 6 * page)
    for grow in (
        lambda: file.pwrite(b"x", 7 * page), lambda: file.allocate_range(0, 8 * page),
        lambda: file.allocate(8 * page), lambda: disk.create(Path("/b")),
    ):  # fmt: skip
        with pytest.raises(OSError, match="space") as caught:
            grow()
        assert caught.value.errno == errno.ENOSPC
    assert not disk.exists(Path("/b"))
    file.pwrite(b"y" * 7 * page, 0)
    assert file.punch(5 * page, 100 * page)
    assert disk.used == 8 * page
    assert file.pread(3 * page, 4 * page) == b"y" * page + bytes(2 * page)
    disk.others = 0
    disk.create(Path("/b")).close()
    file.close()


def test_a_store_into_a_hole_of_the_simulated_disk_is_found() -> None:
    """On a real disk that is full it kills the process, and on one that is not nobody notices."""
    disk = SimulatedDisk()
    file = disk.create(Path("/a"))
    file.resize(16384)
    file.allocate_range(4096, 8192)
    memory = file.map(16384, writable=True)
    memory[5000:5004] = b"fine"
    disk.image()
    memory[8192:8196] = b"hole"
    with pytest.raises(AssertionError, match="a store into a hole, at page 2"):
        disk.image()


def simulated() -> tuple[SimulatedDisk, Path]:
    disk, path = SimulatedDisk(), Path("/folder/file")
    disk.make_folder(path.parent)
    file: File = disk.create(path)
    file.pwrite(b"written", 0)
    return disk, path


def test_a_simulated_disk_keeps_what_was_synced_as_a_whole() -> None:
    disk, path = simulated()
    found = disk.volume(path.parent)
    assert found is not None
    found.sync()
    after = SimulatedDisk.after(disk.image(), Survival.NONE, disk.chance)
    assert after.read_whole(path) == b"written"


def test_a_simulated_disk_forgets_what_a_failed_sync_of_the_whole_lost() -> None:
    disk, path = simulated()
    disk.chance.seed(1)
    found = disk.volume(path.parent)
    assert found is not None
    disk.plan.fail("sync_volume", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        found.sync()
    # A second one succeeds and proves nothing.
    disk.chance.seed(1)
    found.sync()
    after = SimulatedDisk.after(disk.image(), Survival.ALL, disk.chance)
    assert after.read_whole(path) != b"written"


def written(*pieces: tuple[int, bytes]) -> Inode:
    inode = Inode(2, is_folder=False, mtime_ns=0)
    descriptor = inode.descriptor(os.O_RDWR)
    for position, data in pieces:
        os.pwrite(descriptor, data, position)
        inode.touch(position, position + len(data))
        inode.allocate(position, position + len(data))
    os.close(descriptor)
    return inode


def test_what_was_written_is_seen_at_once_and_durable_after_a_sync() -> None:
    inode = written((0, b"abc"))
    assert (inode.seen, inode.durable, inode.dirty()) == (b"abc", b"", [0])
    inode.sync()
    assert (inode.durable, inode.dirty()) == (b"abc", [])


def test_pages_of_a_failed_sync_count_as_written_and_are_not() -> None:
    inode = written((0, b"a" * PAGE_BYTES * 20))
    inode.fail_sync(Random(1))
    assert inode.dirty() == []
    lost = inode.durable.ljust(PAGE_BYTES * 20, b"\0").count(0)
    assert lost > 0
    inode.sync()
    assert inode.durable != inode.seen, "a second sync lies"


def test_room_is_counted_in_pages_and_given_back_in_whole_ones() -> None:
    inode = written((PAGE_BYTES - 1, b"ab"))
    assert inode.room == 2 * PAGE_BYTES
    assert inode.lacking(0, 3 * PAGE_BYTES) == PAGE_BYTES
    inode.punch(1, 2 * PAGE_BYTES)
    assert inode.room == PAGE_BYTES


def test_after_a_kill_what_waits_goes_on_waiting() -> None:
    again = Inode.after_kill(written((0, b"abc")).still())
    assert (again.seen, again.durable, again.dirty()) == (b"abc", b"", [0])
    cut = Inode.after_power_cut(written((0, b"abc")).still(), b"ab", 7)
    assert (cut.seen, cut.durable, cut.dirty(), cut.mtime_ns) == (b"ab", b"ab", [], 7)


def test_pages_are_put_into_a_base_of_any_length() -> None:
    one, other = b"a" * PAGE_BYTES * 2, b"b" * PAGE_BYTES * 2
    assert with_pages(one, other, [1], PAGE_BYTES * 2) == b"a" * PAGE_BYTES + b"b" * PAGE_BYTES
    assert with_pages(b"", b"xy", [0], 5) == b"xy\0\0\0"


def cut(platter: Platter, survival: Survival, seed: int = 0) -> Platter:
    return Platter.after(platter.image(), survival, Random(seed))


def synced(platter: Platter, path: str) -> None:
    folder = platter.find(Path(path))
    assert folder is not None
    platter.sync_folder(folder)


@pytest.fixture
def platter() -> Platter:
    made = Platter()
    made.make(Path("/f"), is_folder=True, mtime_ns=0)
    synced(made, "/")
    made.make(Path("/f/a"), is_folder=False, mtime_ns=0)
    return made


def test_a_name_is_durable_once_its_folder_was_synced(platter: Platter) -> None:
    assert cut(platter, Survival.NONE).find(Path("/f/a")) is None
    assert cut(platter, Survival.ALL).find(Path("/f/a")) is not None
    assert cut(platter, Survival.PROCESS).find(Path("/f/a")) is not None
    synced(platter, "/f")
    assert cut(platter, Survival.NONE).find(Path("/f/a")) is not None


def test_a_rename_is_one_step(platter: Platter) -> None:
    synced(platter, "/f")
    inode = platter.find(Path("/f/a"))
    assert inode is not None
    platter.change((Path("/f/a"), 0), (Path("/f/b"), inode.number), inode=inode.number)
    for seed in range(40):
        crashed = cut(platter, Survival.PAGES, seed)
        found = [crashed.find(Path("/f") / name) is not None for name in "ab"]
        assert sorted(found) == [False, True]


def test_a_change_never_outlives_one_that_it_stands_on(platter: Platter) -> None:
    inode = platter.find(Path("/f/a"))
    assert inode is not None
    platter.change((Path("/f/a"), 0), (Path("/f/b"), inode.number), inode=inode.number)
    for seed in range(40):
        crashed = cut(platter, Survival.SECTORS, seed)
        assert crashed.find(Path("/f/b")) is None or crashed.find(Path("/f/a")) is None


def test_what_no_name_leads_to_is_gone(platter: Platter) -> None:
    synced(platter, "/f")
    inode = platter.find(Path("/f/a"))
    assert inode is not None
    platter.change((Path("/f/a"), 0), inode=inode.number)
    assert inode.number in platter.inodes, "the medium still has its name"
    synced(platter, "/f")
    assert set(platter.inodes) == {ROOT, inode.number - 1}


def test_a_folder_that_is_removed_with_pending_renames_in_it_can_be_cut_off_at_any_of_them(platter: Platter) -> None:  # fmt: skip
    """A topic was deleted right after its first message: its queue's folder was gone from the medium, the rename in it was not."""
    inode, folder = platter.find(Path("/f/a")), platter.find(Path("/f"))
    assert inode is not None
    assert folder is not None
    platter.change((Path("/f/a"), 0), (Path("/f/b"), inode.number), inode=inode.number)
    platter.change((Path("/f/b"), 0), inode=inode.number)
    platter.change((Path("/f"), 0), inode=folder.number)
    synced(platter, "/")
    for survival in Survival:
        for seed in range(20):
            assert cut(platter, survival, seed).find(Path("/f")) is None
