"""The simulated disk: how full it is, a store into a hole, syncs that fail, and files without a name."""

import errno
import os
from pathlib import Path
from random import Random

import pytest

from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import PAGE_BYTES, ROOT, Inode, Platter, Survival


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


def test_a_simulated_disk_forgets_what_a_failed_sync_of_the_whole_lost() -> None:
    disk, path = SimulatedDisk(), Path("/folder/file")
    disk.make_folder(path.parent)
    disk.create(path).pwrite(b"written", 0)
    found = disk.volume(path.parent)
    assert found is not None
    disk.chance.seed(1)
    disk.plan.fail("sync_volume", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        found.sync()
    # A second one succeeds and proves nothing.
    disk.chance.seed(1)
    found.sync()
    after = SimulatedDisk.after(disk.image(), Survival.ALL, disk.chance)
    assert after.read_whole(path) != b"written"


def test_pages_of_a_failed_sync_count_as_written_and_are_not() -> None:
    inode, size = Inode(2, is_folder=False, mtime_ns=0), PAGE_BYTES * 20
    descriptor = inode.descriptor(os.O_RDWR)
    os.pwrite(descriptor, b"a" * size, 0)
    os.close(descriptor)
    inode.touch(0, size)
    inode.allocate(0, size)
    inode.fail_sync(Random(1))
    assert inode.dirty() == []
    lost = inode.durable.ljust(size, b"\0").count(0)
    assert lost > 0
    inode.sync()
    assert inode.durable != inode.seen, "a second sync lies"


def test_what_no_name_leads_to_is_gone() -> None:
    platter, path = Platter(), Path("/a")
    platter.make(path, is_folder=False, mtime_ns=0)
    folder, inode = platter.find(Path("/")), platter.find(path)
    assert folder is not None
    assert inode is not None
    platter.sync_folder(folder)
    platter.change((path, 0), inode=inode.number)
    assert inode.number in platter.inodes, "the medium still has its name"
    platter.sync_folder(folder)
    assert set(platter.inodes) == {ROOT}
