"""The simulated disk: full when it is, times of its clock, and no store into a hole."""

import errno
from pathlib import Path

import pytest
from tests.unit.retention.stores import SEGMENT, fill, opened

from penstock.errors import DiskFullError
from penstock.files.file import File
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import Survival


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


def test_times_on_the_simulated_disk_are_those_of_its_clock() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(capacity=4096, clock=clock)
    file = disk.create(Path("/a"))
    clock.now_ms += 5000
    assert disk.open(Path("/a")).mtime_ms == clock.now_ms - 5000
    file.pwrite(b"x", 0)
    clock.now_ms += 5000
    assert disk.open(Path("/a")).mtime_ms == clock.now_ms - 5000
    file.sync()
    assert file.mtime_ms == clock.now_ms
    file.close()


def test_a_store_on_a_full_simulated_disk_says_so_and_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = SimulatedDisk(capacity=1 << 20, clock=clock)
    with opened(tmp_path / "s", files=disk, clock=clock, write="file") as store:
        fill(store, 2)
        disk.others = (1 << 20) - disk.used
        with pytest.raises(DiskFullError):
            fill(store, 3)
        disk.others = 0
        fill(store, 3)
        names = [entry.name for entry in disk.entries(tmp_path / "s" / "commitlog")]
        assert [int(name) for name in names] == [0, SEGMENT, 2 * SEGMENT]


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
