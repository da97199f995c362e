"""Files of segments: made whole, on demand or ahead, recycled, and what a crash or a full disk leaves."""

import errno
import os
import threading
from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.contracts import NoOptions
from penstock.errors import BusyError
from penstock.files import File, Files
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, make_context
from penstock.testing.disk import SimulatedFile
from penstock_alloc.allocators import (
    AheadAllocator,
    OnDemandAllocator,
    PreallocateAllocator,
    PreallocateOptions,
    RecycleAllocator,
    RecycleOptions,
    make_file,
    remove_file,
)

ROOT = Path("/store")
LOG, SIDE = ROOT / "commitlog", ROOT / "penstock"
PATH = LOG / "0"
SIZE = 8192
WORKER = "penstock-allocate"


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    make_context(ROOT, files=made)
    return made


@pytest.fixture
def workers() -> ManualWorkers:
    return ManualWorkers()


def names(disk: SimulatedDisk) -> list[str]:
    return [entry.name for part in (LOG, SIDE) for entry in disk.entries(part)]


# --- a new file appears whole and durable under its name, or not at all


@pytest.mark.parametrize("allocated", [True, False])
def test_a_file_is_there_whole_after_a_power_cut(disk: SimulatedDisk, allocated: bool) -> None:
    file = make_file(disk, ROOT, PATH, SIZE, allocated=allocated)
    assert file.path == PATH
    file.pwrite(b"x", 0)
    crashed = power_cut(disk)
    assert crashed.read_whole(PATH) == bytes(SIZE)
    assert names(crashed) == ["0"]
    remove_file(disk, PATH)
    assert names(power_cut(disk)) == []


@pytest.mark.parametrize("call", ["create", "allocate", "sync", "rename", "sync_folder"])
def test_whatever_fails_leaves_nothing(disk: SimulatedDisk, call: str) -> None:
    disk.plan.fail(call, errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        make_file(disk, ROOT, PATH, SIZE, allocated=True)
    assert names(disk) == []
    make_file(disk, ROOT, PATH, SIZE, allocated=True)


def test_it_is_begun_anew_and_prepared_before_it_has_its_name(disk: SimulatedDisk) -> None:
    """A crash may have left it half made."""

    def prepare(file: File) -> None:
        assert not disk.exists(PATH)
        assert file.pread(4, 0) == bytes(4)
        file.pwrite(b"abc", 0)

    disk.write_whole(SIDE / "new-0", b"half")
    make_file(disk, ROOT, PATH, SIZE, allocated=False, prepare=prepare)
    assert power_cut(disk).read_whole(PATH)[:3] == b"abc"
    assert names(disk) == ["0"]


def test_on_demand_nothing_is_made_ahead(disk: SimulatedDisk, workers: ManualWorkers) -> None:
    context = make_context(ROOT, files=disk, spawn=workers)
    allocator = OnDemandAllocator(NoOptions(), context)
    allocator.expect([PATH], SIZE, allocated=True)
    assert (workers.by_name, disk.entries(LOG)) == ({}, [])
    assert allocator.obtain(PATH, SIZE, allocated=True).size == SIZE


# --- orders: nearest first, made once, waited for, and forgotten when they fail


class Maker(AheadAllocator):
    """Fails as often as it is told to, and stops at a gate if it has one."""

    name = "maker"

    def __init__(self, disk: SimulatedDisk, workers: ManualWorkers) -> None:
        context = make_context(ROOT, files=disk, spawn=workers)
        super().__init__(PreallocateOptions(timeout_ms=1), context)
        self.workers = workers
        self.made: list[str] = []
        self.failures = 0
        self.began, self.gate = threading.Semaphore(0), threading.Event()
        self.gate.set()

    def create(self, path: Path, size: int, *, allocated: bool) -> File:
        self.began.release()
        assert self.gate.wait(30)
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, "full")
        self.made.append(path.name)
        return make_file(self.context.files, ROOT, path, size, allocated=allocated)

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        raise NotImplementedError

    def order(self, *numbers: str) -> bool:
        """Expect segments; return whether the worker has to create any."""
        self.expect([LOG / number for number in numbers], SIZE, allocated=True)
        worker = self.workers.by_name[WORKER]
        is_awake, worker.is_awake = worker.is_awake, False
        return is_awake

    def take(self, number: str) -> File:
        return self.obtain(LOG / number, SIZE, allocated=True)


@pytest.fixture
def maker(disk: SimulatedDisk, workers: ManualWorkers) -> Maker:
    return Maker(disk, workers)


def test_the_nearest_is_made_first_each_once_and_the_last_is_removed_first(
    maker: Maker, disk: SimulatedDisk
) -> None:
    assert maker.order("2", "1")
    assert maker.order("1", "3")
    maker.step()
    maker.step()
    assert maker.made == ["1", "2", "3"]
    assert not maker.order("1"), "there is nothing to do"
    assert maker.take("2").size == SIZE
    assert (maker.stats(), maker.made) == ({"files_ready": 2}, ["1", "2", "3"])
    removed: list[str] = []
    disk.plan.watch = lambda call, path: removed.append(path.name) if call == "remove" else None
    maker.close()
    assert removed == ["3", "1"]
    assert not maker.order("4")
    maker.step()
    assert maker.made == ["1", "2", "3"]


def test_an_order_that_failed_is_tried_again_by_who_needs_it(maker: Maker) -> None:
    maker.order("1", "2")
    maker.failures = 2
    maker.step()
    assert maker.stats() == {"files_ready": 0}
    with pytest.raises(OSError, match="full"):
        maker.take("1")
    assert maker.take("1").size == SIZE


def test_one_in_the_making_is_waited_for_up_to_the_limit(maker: Maker) -> None:
    maker.order("1", "2")
    maker.gate.clear()
    thread = threading.Thread(target=maker.step)
    thread.start()
    maker.began.acquire()
    with pytest.raises(BusyError, match="segment 1 has not been ready for 1 ms"):
        maker.take("1")
    maker.gate.set()
    thread.join()
    assert maker.stats() == {"files_ready": 2}
    assert maker.take("1").size == SIZE


# --- preallocation: blocks, pages that are brought in, and locked ones


class Memory:
    """A disk that notes which files are prefaulted and locked, and can be told to refuse it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk, self.workers = SimulatedDisk(), ManualWorkers()
        self.calls: list[str] = []
        self.is_refused = False
        monkeypatch.setattr(SimulatedFile, "prefault", self.prefault)
        monkeypatch.setattr(self.disk, "lock_memory", lambda m: self.calls.append(f"lock {m}"))
        monkeypatch.setattr(self.disk, "unlock_memory", lambda m: self.calls.append(f"unlock {m}"))

    def prefault(self, size: int) -> str:
        self.calls.append(f"prefault {size}")
        if self.is_refused:
            raise OSError(errno.EPERM, "no")
        return "memory"

    def allocator(self, *, waits: bool = False, **options: bool) -> PreallocateAllocator:
        context = make_context(ROOT, files=self.disk, spawn=self.workers, appenders_wait=waits)
        return PreallocateAllocator(PreallocateOptions(**options), context)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def test_a_prefaulted_map_is_the_one_that_is_written(tmp_path: Path) -> None:
    file = Files().create(tmp_path / "f")
    file.allocate(SIZE)
    assert file.prefault(SIZE) is file.map(SIZE, writable=True)
    file.close()


def test_files_made_ahead_have_all_their_blocks_and_go_at_the_close(memory: Memory) -> None:
    allocator = memory.allocator(prefault=False)
    allocator.expect([PATH, LOG / "1"], SIZE, allocated=False)
    memory.workers.run(WORKER)
    assert allocator.stats() == {"files_ready": 2, "segments_locked": 0}
    assert memory.disk.used == 2 * SIZE
    allocator.obtain(PATH, SIZE, allocated=False)
    allocator.close()
    assert [entry.name for entry in memory.disk.entries(LOG)] == ["0"]


@pytest.mark.parametrize("waits", [False, True])
def test_locked_pages_of_a_full_or_deleted_segment_are_given_up(
    memory: Memory, waits: bool
) -> None:
    allocator = memory.allocator(waits=waits, prefault=True, lock_memory=True)
    paths = [LOG / name for name in "012"]
    allocator.expect(paths, SIZE, allocated=True)
    memory.workers.run(WORKER)
    assert memory.calls == [f"prefault {SIZE}", "lock memory"] * 3
    assert allocator.stats() == {"files_ready": 3, "segments_locked": 3}
    for path in paths[:2]:
        allocator.obtain(path, SIZE, allocated=True)
    worker = memory.workers.by_name[WORKER]
    worker.is_awake, woken = False, list[bool]()
    for path in (LOG / "other", paths[0]):
        allocator.sealed(path)
        woken.append(worker.is_awake)
    assert woken == [False, True]
    memory.workers.run(WORKER)
    assert memory.calls[6:] == ["unlock memory"]
    assert allocator.stats() == {"files_ready": 1, "segments_locked": 2}
    allocator.discard(paths[1])
    assert allocator.stats()["segments_locked"] == 1
    allocator.close()
    assert allocator.stats()["segments_locked"] == 0
    assert [entry.name for entry in memory.disk.entries(LOG)] == ["0"]


def test_where_pages_cannot_be_had_it_is_said_once_and_files_are_made_without(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.is_refused = True
    allocator = memory.allocator(prefault=True, lock_memory=True)
    for name in "012":
        assert allocator.obtain(LOG / name, SIZE, allocated=False).allocated == SIZE
    assert memory.calls == [f"prefault {SIZE}"]
    assert caplog.text.count("no longer prefaulted or locked") == 1
    allocator.close()


@pytest.mark.parametrize("waits", [True, False])
def test_files_are_prefaulted_before_their_name_is_there_only_where_puts_wait(
    memory: Memory, waits: bool
) -> None:
    """They are synced as zeros then; and without the option no page is brought in."""
    memory.disk.plan.watch = lambda call, path: memory.calls.append(call)
    allocator = memory.allocator(waits=waits, prefault=True)
    assert allocator.obtain(PATH, SIZE, allocated=False).allocated == SIZE
    assert (memory.calls.index(f"prefault {SIZE}") < memory.calls.index("rename")) == waits
    plain = memory.allocator(waits=waits, prefault=False)
    memory.calls.clear()
    assert plain.obtain(LOG / "1", SIZE, allocated=False).allocated == SIZE
    assert f"prefault {SIZE}" not in memory.calls


# --- expired segments used again: only once they are all zero on disk, and never under a reader


@pytest.fixture
def recycler(disk: SimulatedDisk, workers: ManualWorkers) -> RecycleAllocator:
    context = make_context(ROOT, files=disk, spawn=workers)
    return RecycleAllocator(RecycleOptions(spares=1), context)


def expired(disk: SimulatedDisk, name: str = "0") -> Path:
    disk.write_whole(LOG / name, b"record".ljust(SIZE, b"x"))
    return LOG / name


def spares(disk: SimulatedDisk) -> list[str]:
    return [entry.name for entry in disk.entries(SIDE)]


def test_an_expired_file_becomes_the_next_all_zero_on_disk(
    recycler: RecycleAllocator, disk: SimulatedDisk, workers: ManualWorkers
) -> None:
    recycler.expect([LOG / "1"], SIZE, allocated=True)
    workers.run(WORKER)
    recycler.discard(expired(disk))
    assert not power_cut(disk).exists(PATH), "its old name is gone before a byte of it changes"
    workers.run(WORKER)
    recycler.expect([LOG / "2"], SIZE, allocated=True)
    workers.run(WORKER)
    inode = disk.inode(LOG / "2")
    assert recycler.obtain(LOG / "2", SIZE, allocated=True).inode == inode
    assert power_cut(disk).read_whole(LOG / "2") == bytes(SIZE)
    assert recycler.stats() == {"files_ready": 1, "spares": 0, "segments_recycled": 1}
    recycler.discard(expired(disk))
    recycler.close()
    assert (spares(disk), [entry.name for entry in disk.entries(LOG)]) == ([], ["2"])


def test_a_file_that_is_not_overwritten_yet_is_never_handed_out(
    recycler: RecycleAllocator, disk: SimulatedDisk
) -> None:
    recycler.discard(expired(disk))
    assert recycler.obtain(LOG / "1", SIZE, allocated=True).pread(6, 0) == bytes(6)
    assert recycler.stats()["segments_recycled"] == 0


def test_under_a_reader_or_beyond_what_is_kept_a_file_is_removed(
    recycler: RecycleAllocator, disk: SimulatedDisk
) -> None:
    recycler.discard(expired(disk, "0"), in_use=True)
    assert spares(disk) == []
    for name in ("1", "2"):
        recycler.discard(expired(disk, name))
    assert spares(disk) == ["spare-1"]
    assert disk.entries(LOG) == []


def test_what_a_crash_left_is_overwritten_again_and_of_another_size_removed(
    recycler: RecycleAllocator, disk: SimulatedDisk, workers: ManualWorkers
) -> None:
    disk.write_whole(SIDE / "spare-7", b"x" * SIZE)
    disk.write_whole(SIDE / "spare-8", b"x")
    recycler.expect([], SIZE, allocated=True)
    workers.run(WORKER)
    assert spares(disk) == ["spare-7"]
    assert disk.read_whole(SIDE / "spare-7") == bytes(SIZE)


def test_one_that_cannot_be_overwritten_is_removed_and_a_new_one_made(
    recycler: RecycleAllocator,
    disk: SimulatedDisk,
    workers: ManualWorkers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recycler.expect([], SIZE, allocated=True)
    recycler.discard(expired(disk))
    disk.plan.fail("erase", errno.EIO, times=1)
    workers.run(WORKER)
    assert "is removed instead of reused" in caplog.text
    assert spares(disk) == []
    assert recycler.obtain(LOG / "1", SIZE, allocated=True).size == SIZE


def test_a_spare_that_cannot_be_renamed_keeps_no_descriptor(
    tmp_path: Path, workers: ManualWorkers
) -> None:
    files = FaultyFiles()
    context = make_context(tmp_path, files=files, spawn=workers)
    allocator = RecycleAllocator(RecycleOptions(spares=1), context)
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
