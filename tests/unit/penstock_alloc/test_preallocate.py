"""Files made ahead: which first, how long one in the making is waited for, and what a crash leaves."""

import os
import threading
from pathlib import Path

import pytest

from penstock import BusyError
from penstock.files import File, Files
from penstock.testing import FaultyFiles, ManualWorkers, SimulatedDisk, make_context, open_store
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


def test_preallocated_files_left_by_a_crash_are_removed(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path / "s", files=files, spawn=ManualWorkers(), alloc="preallocate")
    store.put("t", b"x")
    engine = store._engine
    assert engine is not None
    engine.log.tail.allocator._step()  # type: ignore[attr-defined] # its background work
    assert len(list((tmp_path / "s" / "commitlog").iterdir())) == 3
    files.plan.is_dead = True
    files.abandon()
    with open_store(tmp_path / "s") as store:
        assert store.recovery is not None
        assert sum("created ahead and not used" in text for text in store.recovery.mended) == 2
        assert [m.body for m in store.scan("t")] == [b"x"]
        assert len(list((tmp_path / "s" / "commitlog").iterdir())) == 1


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
