"""Files made ahead: which first, how long one in the making is waited for, and what a crash leaves."""

import errno
import os
import threading
from pathlib import Path

import pytest

from penstock import BusyError
from penstock.files import File, Files
from penstock.testing import ManualWorkers, SimulatedDisk, make_context
from penstock.testing.disk import SimulatedFile
from penstock_alloc.ahead import Ahead
from penstock_alloc.preallocate import PreallocateAllocator, PreallocateOptions

SIZE = 64 * 1024


def test_a_segment_in_the_making_is_waited_for_up_to_the_limit() -> None:
    gate, begun = threading.Event(), threading.Event()

    def make(path: Path, size: int, allocated: bool) -> File:
        begun.set()
        gate.wait(30)
        return File(path, os.open("/dev/null", os.O_RDONLY))

    ahead = Ahead(make, 50)
    ahead.order([Path("1"), Path("2")], SIZE, allocated=True)
    worker = threading.Thread(target=ahead.work)
    worker.start()
    assert begun.wait(30)
    with pytest.raises(BusyError, match="has not been ready for 50 ms"):
        ahead.obtain(Path("1"), SIZE, allocated=True)
    gate.set()
    worker.join()
    assert ahead.ready == 2
    assert ahead.obtain(Path("1"), SIZE, allocated=True).path == Path("1")
    assert [file.path for file in ahead.close()] == [Path("2")]


def test_the_nearest_file_is_made_first() -> None:
    made: list[str] = []

    def make(path: Path, size: int, allocated: bool) -> File:
        made.append(path.name)
        return File(path, os.open("/dev/null", os.O_RDONLY))

    ahead = Ahead(make, 1000)
    ahead.order([Path("3"), Path("1")], SIZE, allocated=True)
    ahead.order([Path("2"), Path("1")], SIZE, allocated=True)
    ahead.work()
    assert made == ["1", "2", "3"]
    assert [file.path.name for file in ahead.close()] == ["3", "2", "1"]


def test_a_prefaulted_map_is_the_one_that_is_written(tmp_path: Path) -> None:
    file = Files().create(tmp_path / "f")
    file.allocate(SIZE)
    assert file.prefault(SIZE) is file.map(SIZE, writable=True)
    file.close()


def test_files_made_ahead_have_all_their_blocks_and_go_at_the_close() -> None:
    disk, workers, root = SimulatedDisk(), ManualWorkers(), Path("/store")
    context = make_context(root, files=disk, spawn=workers)
    allocator = PreallocateAllocator(PreallocateOptions(prefault=False), context)
    paths = [root / "commitlog" / name for name in ("0", "1")]
    allocator.expect(paths, 8192, allocated=False)
    workers.run("penstock-allocate")
    assert allocator.stats() == {"files_ready": 2, "segments_locked": 0}
    assert disk.used == 2 * 8192
    allocator.obtain(paths[0], 8192, allocated=False)
    allocator.close()
    assert [entry.name for entry in disk.entries(root / "commitlog")] == ["0"]


LOG = Path("/store/commitlog")
WORKER = "penstock-allocate"


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
        context = make_context(
            LOG.parent, files=self.disk, spawn=self.workers, appenders_wait=waits
        )
        return PreallocateAllocator(PreallocateOptions(**options), context)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def test_locked_pages_of_a_full_or_deleted_segment_are_given_up(memory: Memory) -> None:
    allocator = memory.allocator(prefault=True, lock_memory=True)
    paths = [LOG / name for name in "012"]
    allocator.expect(paths, SIZE, allocated=True)
    memory.workers.run(WORKER)
    assert memory.calls == [f"prefault {SIZE}", "lock memory"] * 3
    assert allocator.stats() == {"files_ready": 3, "segments_locked": 3}
    for path in paths[:2]:
        allocator.obtain(path, SIZE, allocated=True)
    worker = memory.workers.by_name[WORKER]
    woken: list[bool] = []
    worker.is_awake = False
    for path in (LOG / "other", paths[0]):
        allocator.sealed(path)
        woken.append(worker.is_awake)
    assert woken == [False, True]
    memory.workers.run(WORKER)
    assert memory.calls[6:] == ["unlock memory"]
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
    order: list[str] = []
    memory.disk.plan.watch = lambda call, path: order.append(call)
    memory.calls = order
    allocator = memory.allocator(waits=waits, prefault=True)
    assert allocator.obtain(LOG / "0", SIZE, allocated=False).allocated == SIZE
    assert (order.index(f"prefault {SIZE}") < order.index("rename")) == waits
    plain = memory.allocator(waits=waits, prefault=False)
    order.clear()
    assert plain.obtain(LOG / "1", SIZE, allocated=False).allocated == SIZE
    assert f"prefault {SIZE}" not in order


def test_an_order_is_waited_for_at_least_a_millisecond() -> None:
    assert PreallocateOptions(timeout_ms=1).timeout_ms == 1
    with pytest.raises(ValueError, match="timeout_ms"):
        PreallocateOptions(timeout_ms=0)
