"""Expired segments used again: only once they are all zero on disk, and never under a reader."""

import errno
import os
from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, make_context
from penstock_alloc.recycle import RecycleAllocator, RecycleOptions

ROOT = Path("/store")
LOG, SIDE = ROOT / "commitlog", ROOT / "penstock"
SIZE = 8192
WORKER = "penstock-allocate"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def workers() -> ManualWorkers:
    return ManualWorkers()


@pytest.fixture
def allocator(disk: SimulatedDisk, workers: ManualWorkers) -> RecycleAllocator:
    context = make_context(ROOT, files=disk, spawn=workers)
    return RecycleAllocator(RecycleOptions(spares=1), context)


def expired(disk: SimulatedDisk, name: str = "0") -> Path:
    disk.write_whole(LOG / name, b"record".ljust(SIZE, b"x"))
    return LOG / name


def spares(disk: SimulatedDisk) -> list[str]:
    return [entry.name for entry in disk.entries(SIDE)]


def test_an_expired_file_becomes_the_next_all_zero_on_disk(
    allocator: RecycleAllocator, disk: SimulatedDisk, workers: ManualWorkers
) -> None:
    allocator.expect([LOG / "1"], SIZE, allocated=True)
    workers.run(WORKER)
    allocator.discard(expired(disk))
    assert not power_cut(disk).exists(LOG / "0"), "its old name is gone before a byte of it changes"
    workers.run(WORKER)
    allocator.expect([LOG / "2"], SIZE, allocated=True)
    workers.run(WORKER)
    inode = disk.inode(LOG / "2")
    assert allocator.obtain(LOG / "2", SIZE, allocated=True).inode == inode
    assert power_cut(disk).read_whole(LOG / "2") == bytes(SIZE)
    assert allocator.stats() == {"files_ready": 1, "spares": 0, "segments_recycled": 1}


def test_a_file_that_is_not_overwritten_yet_is_never_handed_out(
    allocator: RecycleAllocator, disk: SimulatedDisk
) -> None:
    allocator.discard(expired(disk))
    assert allocator.obtain(LOG / "1", SIZE, allocated=True).pread(6, 0) == bytes(6)
    assert allocator.stats()["segments_recycled"] == 0


def test_under_a_reader_or_beyond_what_is_kept_a_file_is_removed(
    allocator: RecycleAllocator, disk: SimulatedDisk
) -> None:
    allocator.discard(expired(disk, "0"), in_use=True)
    assert spares(disk) == []
    for name in ("1", "2"):
        allocator.discard(expired(disk, name))
    assert spares(disk) == ["spare-1"]
    assert disk.entries(LOG) == []


def test_what_a_crash_left_is_overwritten_again_and_of_another_size_removed(
    allocator: RecycleAllocator, disk: SimulatedDisk, workers: ManualWorkers
) -> None:
    disk.write_whole(SIDE / "spare-7", b"x" * SIZE)
    disk.write_whole(SIDE / "spare-8", b"x")
    allocator.expect([], SIZE, allocated=True)
    workers.run(WORKER)
    assert spares(disk) == ["spare-7"]
    assert disk.read_whole(SIDE / "spare-7") == bytes(SIZE)


def test_one_that_cannot_be_overwritten_is_removed_and_a_new_one_made(
    allocator: RecycleAllocator,
    disk: SimulatedDisk,
    workers: ManualWorkers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    allocator.expect([], SIZE, allocated=True)
    allocator.discard(expired(disk))
    disk.plan.fail("erase", errno.EIO, times=1)
    workers.run(WORKER)
    assert "is removed instead of reused" in caplog.text
    assert spares(disk) == []
    assert allocator.obtain(LOG / "1", SIZE, allocated=True).size == SIZE


def test_a_spare_that_cannot_be_renamed_keeps_no_descriptor(tmp_path: Path) -> None:
    files, workers = FaultyFiles(), ManualWorkers()
    context = make_context(tmp_path, files=files, spawn=workers)
    allocator = RecycleAllocator(RecycleOptions(spares=1), context)
    (tmp_path / "penstock").mkdir(exist_ok=True)
    old = tmp_path / "commitlog" / "0"
    old.write_bytes(b"x" * SIZE)
    allocator.expect([], SIZE, allocated=True)
    allocator.discard(old)
    workers.run(WORKER)
    files.plan.fail("sync_folder", errno.EIO, times=1)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Input/output error") as raised:
        allocator.obtain(tmp_path / "commitlog" / "1", SIZE, allocated=True)
    # The error's frames still hold the file.
    assert raised.tb is not None
    assert os.listdir("/proc/self/fd") == before
    allocator.close()


def test_a_close_leaves_no_spare(
    allocator: RecycleAllocator, disk: SimulatedDisk, workers: ManualWorkers
) -> None:
    allocator.expect([LOG / "1"], SIZE, allocated=True)
    workers.run(WORKER)
    allocator.discard(expired(disk))
    allocator.close()
    assert (spares(disk), disk.entries(LOG)) == ([], [])
