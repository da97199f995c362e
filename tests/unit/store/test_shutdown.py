"""The end of a writing store: the clean mark comes last, and the lock goes whatever happened."""

import errno
from pathlib import Path

import pytest

from penstock.durability.side_folder import SideFolder, fingerprint, vouched_for
from penstock.errors import StorageError, StoreFailedError
from penstock.store.store import Store
from penstock.testing import ManualWorkers, SimulatedDisk, messages, open_store

ROOT = Path("/store")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Store:
    made = open_store(ROOT, files=disk, spawn=ManualWorkers(), flush="none", retention=[])
    made.put_many(messages(20))
    return made


def test_a_sync_that_fails_at_the_close_leaves_the_store_unclean_and_free(
    disk: SimulatedDisk, store: Store
) -> None:
    disk.plan.fail("sync", errno.EIO, path="commitlog", times=1)
    with pytest.raises(StoreFailedError):
        store.close()
    assert SideFolder(disk, ROOT).read_clean() is None
    assert disk.exists(ROOT / "abort")
    assert not disk.is_locked(ROOT / "lock")


def test_a_dispatcher_that_is_behind_leaves_the_store_unclean(
    disk: SimulatedDisk, store: Store
) -> None:
    disk.plan.fail("pwrite", errno.EIO, path="consumequeue")
    with pytest.raises(StorageError, match=r"lags the log|consume-queue"):
        store.close()
    assert SideFolder(disk, ROOT).read_clean() is None
    disk.plan.heal()
    with open_store(ROOT, files=disk, spawn=ManualWorkers()) as again:
        assert sum(again.max_offset(t, q) for t, qs in again.topics().items() for q in qs) == 20


def test_one_part_that_cannot_be_closed_keeps_no_other_open(
    disk: SimulatedDisk,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = store._engine
    assert engine is not None

    def fails() -> None:
        raise ValueError("no")

    monkeypatch.setattr(engine.dispatchers[0], "close", fails)
    engine._shutdown.release()
    assert "failed; the next open for writing recovers from it" in caplog.text
    assert not disk.is_locked(ROOT / "lock")


def test_nothing_is_released_before_the_last_thread_that_could_write_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store._engine is not None
    shutdown = store._engine._shutdown
    released, waiting, stops = list[int](), list[object](), list[int]()
    monkeypatch.setattr(shutdown, "release", lambda: released.append(1))
    monkeypatch.setattr(shutdown.crew, "stop", lambda: stops.append(1))
    monkeypatch.setattr(shutdown.crew, "when_ended", waiting.append)
    monkeypatch.setattr(shutdown.crew, "hanging", lambda: ["penstock-follow"])
    shutdown.release_all()
    assert (released, waiting) == ([], [shutdown.release])
    monkeypatch.setattr(shutdown.crew, "hanging", list)
    shutdown.release_all()
    assert (released, len(waiting), stops) == ([1], 1, [1, 1])


def test_a_clean_close_gives_back_what_was_allocated_ahead_before_it_vouches(
    disk: SimulatedDisk, store: Store
) -> None:
    before = disk.used
    store.put("t", b"x")
    store.close()
    assert disk.used < before
    clean = SideFolder(disk, ROOT).read_clean()
    assert clean is not None
    assert clean.digest == fingerprint(disk, vouched_for(ROOT))
