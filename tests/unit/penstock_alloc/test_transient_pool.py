"""Pooled buffers and files made ahead: options, limits, what they say when they are refused."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import BusyError
from penstock.files import Files
from penstock.testing import FaultyFiles, ManualWorkers, make_context, open_store
from penstock_alloc.preallocate import PreallocateAllocator, PreallocateOptions
from penstock_alloc.transient_pool import TransientPoolOptions, TransientPoolWriter

SIZE = 64 * 1024


class NoLockFiles(Files):
    """A machine without room for locked memory."""

    def lock_memory(self, memory: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


# --- the transient pool


def pooled(path: Path, workers: ManualWorkers | None, **more: Any) -> penstock.Store:
    options = {
        f"write.transient-pool.{name}": value for name, value in more.pop("options", {}).items()
    }
    options.setdefault("write.transient-pool.lock_memory", False)
    return open_store(path, spawn=workers, write="transient-pool", **options, **more)


def figures(store: penstock.Store) -> Any:
    return store.stats()["strategies"]["write"]


def test_a_reader_of_the_same_process_finds_what_was_put(tmp_path: Path) -> None:
    with pooled(tmp_path / "s", ManualWorkers()) as store:
        store.put("t", b"mine")
        assert [m.body for m in store.scan("t")] == [b"mine"]


def test_a_full_committed_segment_gives_its_buffer_back(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with pooled(tmp_path / "s", workers, options={"buffers": 2}) as store:
        store.put("t", b"x" * 60_000)
        assert figures(store)["buffers_free"] == 1
        store.put("t", b"x" * 60_000)
        # `stats` commits, as every read does: the first buffer is free again.
        assert figures(store)["buffers_free"] == 1
        for _ in range(6):
            store.put("t", b"x" * 60_000)
            store.flush()
        assert figures(store) == {
            "name": "transient-pool",
            "buffers_free": 1,
            "segments_without_buffer": 0,
        }


def test_a_later_segment_is_never_committed_before_an_earlier_one(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = pooled(tmp_path / "s", ManualWorkers(), files=files)
    for _ in range(3):
        store.put("t", b"x" * 40_000)
    engine = store._engine
    assert engine is not None
    assert engine.log.log.committed_offset == 0
    first, second, third = sorted((tmp_path / "s" / "commitlog").iterdir())
    files.plan.fail("pwrite", path=second.name)
    with pytest.raises(penstock.PenstockError, match="could not be passed to the system"):
        engine.flusher.commit()
    assert engine.log.log.committed_offset == SIZE
    assert b"x" in first.read_bytes()
    assert b"x" not in third.read_bytes()
    with pytest.raises(penstock.PenstockError, match="takes no more writes"):
        store.put("t", b"no")
    with pytest.raises(penstock.PenstockError):
        store.close()
    with open_store(tmp_path / "s") as store:
        assert len(list(store.scan("t"))) == 1


def test_without_a_free_buffer_it_writes_to_the_file_or_fails_fast(tmp_path: Path) -> None:
    with pooled(tmp_path / "s", ManualWorkers(), options={"buffers": 1}) as store:
        for _ in range(4):
            store.put("t", b"x" * 60_000)
        assert store.stats()["strategies"]["write"]["segments_without_buffer"] > 0
        assert len(list(store.scan("t"))) == 4
    options = {"buffers": 1, "fast_fail": True}
    with pooled(tmp_path / "f", ManualWorkers(), options=options) as store:
        store.put("t", b"x" * 60_000)
        with pytest.raises(BusyError, match="no buffer"):
            store.put("t", b"refused" * 9000)
        store.flush()
        # The full segment is committed only when there is a next one; then its buffer is free.
        assert [m.body[:1] for m in store.scan("t")] == [b"x"]
        assert len(list((tmp_path / "f" / "commitlog").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        {"write": "transient-pool"},
        {"alloc": "preallocate", "alloc.preallocate.lock_memory": True},
    ],
)
def test_memory_that_cannot_be_locked_is_said_once_and_no_more(
    chosen: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path / "s", files=NoLockFiles(), **chosen) as store:
        for _ in range(6):
            store.put("t", b"x" * 40_000)
            store.flush()
            time.sleep(0.02)
        assert len(list(store.scan("t"))) == 6
    said = [record.getMessage() for record in caplog.records if "ulimit -l" in record.getMessage()]
    assert len(said) == 1
    assert "locked into memory" in said[0]


# --- preallocation


@pytest.mark.parametrize("waits", [False, True])
def test_locked_segments_are_unlocked_when_they_are_full(waits: bool, tmp_path: Path) -> None:
    class CountingFiles(Files):
        locked = 0

        def lock_memory(self, memory: Any) -> None:
            self.locked += 1

        def unlock_memory(self, memory: Any) -> None:
            self.locked -= 1

    files, workers = CountingFiles(), ManualWorkers()
    context = make_context(tmp_path, files=files, spawn=workers, appenders_wait=waits)
    allocator = PreallocateAllocator(PreallocateOptions(lock_memory=True), context)
    paths = [tmp_path / "commitlog" / str(number) for number in range(3)]
    allocator.expect(paths, SIZE, allocated=True)
    workers.run("penstock-allocate")
    assert files.locked == 3
    allocator.obtain(paths[0], SIZE, allocated=True).close()
    allocator.sealed(paths[0])
    workers.run("penstock-allocate")
    assert files.locked == 2
    assert allocator.stats() == {"files_ready": 2, "segments_locked": 2}
    allocator.close()


def test_it_makes_no_sense_where_every_put_waits_and_has_at_least_one_buffer() -> None:
    assert "every put waits" in (TransientPoolWriter.conflict({"flush": ["sync"]}) or "")
    assert TransientPoolWriter.conflict({"flush": ["async"]}) is None
    assert not TransientPoolWriter.commits_at_once
    with pytest.raises(ValueError, match="buffers"):
        TransientPoolOptions(buffers=0)


@pytest.mark.parametrize(
    ("name", "least"), [("buffers", 1), ("interval_ms", 1), ("least_pages", 0)]
)
def test_options_have_a_least_value(name: str, least: int) -> None:
    values: dict[str, Any] = {name: least}
    assert getattr(TransientPoolOptions(**values), name) == least
    values[name] = least - 1
    with pytest.raises(ValueError, match=name):
        TransientPoolOptions(**values)
