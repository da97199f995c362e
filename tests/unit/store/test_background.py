"""The background work of a store: each step by itself, with no thread and no clock but the test's."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.durability.checkpoint import Checkpoint
from penstock.errors import StoreFailedError, SystemLimitError
from penstock.retention.runner import Retention
from penstock.store.background import RetentionTask
from penstock.store.engine import Engine
from penstock.store.store import Store
from penstock.testing import ManualWorkers, SimulatedDisk, open_store

ROOT = Path("/s")


@pytest.fixture
def workers() -> ManualWorkers:
    return ManualWorkers()


@pytest.fixture
def store(workers: ManualWorkers) -> Iterator[Store]:
    disk = SimulatedDisk()
    disk.make_folder(ROOT)
    with open_store(ROOT, files=disk, spawn=workers) as opened:
        yield opened


def engine_of(store: Store) -> Engine:
    engine = store._engine
    assert engine is not None
    return engine


# --- following


def test_a_round_dispatches_and_publishes_what_was_put(
    store: Store, workers: ManualWorkers
) -> None:
    engine = engine_of(store)
    store.put("t", b"one")
    assert engine.progress.state.visible_offset < engine.log.end_offset
    assert workers.run("penstock-follow") is not None
    assert engine.follower.progress == engine.log.end_offset
    assert engine.progress.state.visible_offset == engine.log.end_offset


def test_a_round_with_nothing_new_sleeps_until_it_is_woken(
    store: Store, workers: ManualWorkers
) -> None:
    store.put("t", b"one")
    workers.run("penstock-follow")
    assert workers.run("penstock-follow") is None
    follower = workers.by_name["penstock-follow"]
    follower.is_awake = False
    store.put("t", b"two")
    assert follower.is_awake


def test_without_a_descriptor_the_follower_pauses_and_loses_nothing(
    store: Store, workers: ManualWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(store)
    store.put("t", b"one")

    def without_descriptor() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(engine.follower, "catch_up", without_descriptor)
        assert workers.run("penstock-follow") == 0.5
    workers.run("penstock-follow")
    assert engine.follower.progress == engine.log.end_offset


def test_another_error_of_the_system_stops_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workers = SimulatedDisk(), ManualWorkers()
    disk.make_folder(ROOT)
    store = open_store(ROOT, files=disk, spawn=workers)
    engine = engine_of(store)

    def broken() -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(engine.follower, "catch_up", broken)
        workers.run("penstock-follow")
    assert engine.flusher.failure is not None
    with pytest.raises(StoreFailedError, match="broken"):
        store.close()


# --- checkpoints


def counted_writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that grows with each checkpoint written."""
    written: list[object] = []
    real = Checkpoint.write

    def write(self: Checkpoint, times: Any) -> None:
        written.append(times)
        real(self, times)

    monkeypatch.setattr(Checkpoint, "write", write)
    return written


def test_a_checkpoint_is_written_once_for_the_same_progress(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counted_writes(store, monkeypatch)
    engine = engine_of(store)
    store.put("t", b"one")
    store.flush()
    engine.follower.catch_up()
    engine.checkpoints.write()
    engine.checkpoints.write()
    assert len(written) == 1
    assert engine.progress.state.dispatched == {
        d.name: engine.log.end_offset for d in engine.dispatchers
    }


def test_a_checkpoint_without_a_descriptor_is_retried_and_stops_nothing(
    store: Store, workers: ManualWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counted_writes(store, monkeypatch)
    engine = engine_of(store)
    store.put("t", b"one")
    store.flush()

    def without_descriptor() -> int:
        raise OSError(errno.ENFILE, "file table overflow")

    with monkeypatch.context() as patch:
        patch.setattr(engine.dispatchers[0], "flush", without_descriptor)
        with pytest.raises(SystemLimitError, match="file table overflow"):
            engine.checkpoints.write()
        workers.run("penstock-mark")
    assert (written, engine.flusher.failure) == ([], None)
    workers.run("penstock-mark")
    assert len(written) == 1


def test_a_checkpoint_that_fails_stops_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workers = SimulatedDisk(), ManualWorkers()
    disk.make_folder(ROOT)
    store = open_store(ROOT, files=disk, spawn=workers)
    engine = engine_of(store)
    store.put("t", b"one")
    store.flush()

    def broken() -> int:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(engine.dispatchers[0], "flush", broken)
        # The step leaves the error to the next put, flush or close.
        workers.run("penstock-mark")
    assert engine.flusher.failure is not None
    assert "broken" in engine.flusher.failure.reason
    with pytest.raises(StoreFailedError):
        store.put("t", b"two")
    with pytest.raises(StoreFailedError):
        store.close()


# --- retention


def test_a_run_of_retention_that_raises_is_logged_and_the_next_one_comes(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, runs = engine_of(store), []

    def ill(self: Retention) -> int:
        runs.append(1)
        raise RuntimeError("a plugin is ill")

    with monkeypatch.context() as patch:
        patch.setattr(Retention, "run", ill)
        task = RetentionTask(engine.retention, engine.flusher, 1500)
        assert (task.step(), task.step()) == (1.5, 1.5)
    assert len(runs) == 2
    assert "a plugin is ill" in caplog.text


def test_retention_rests_while_the_store_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workers = SimulatedDisk(), ManualWorkers()
    disk.make_folder(ROOT)
    store = open_store(ROOT, files=disk, spawn=workers)
    engine, runs = engine_of(store), []
    engine.flusher.fail("for this test")
    monkeypatch.setattr(Retention, "run", lambda _self: runs.append(1))
    workers.run("penstock-retain")
    assert not runs
    with pytest.raises(StoreFailedError):
        store.close()
