"""The end of a writing store: the clean mark comes last, and the lock goes whatever happened."""

import errno
from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.durability.side_folder import SideFolder, fingerprint, vouched_for
from penstock.errors import StorageError, StoreFailedError
from penstock.store.shutdown import Shutdown
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


def test_a_clean_close_vouches_for_the_files_as_they_are_on_disk(
    disk: SimulatedDisk, store: Store
) -> None:
    assert store._engine is not None
    assert isinstance(store._engine._shutdown, Shutdown)
    end = store.stats()["log_end_offset"]
    store.close()
    crashed = power_cut(disk)
    clean = SideFolder(crashed, ROOT).read_clean()
    assert clean is not None
    assert (clean.log_end, clean.digest) == (end, fingerprint(disk, vouched_for(ROOT)))
    assert not crashed.exists(ROOT / "abort")
    store.close()


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
