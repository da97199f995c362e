"""The background work of a store: what one round does, and when the next one is due."""

import errno
from pathlib import Path

import pytest

from penstock.durability.checkpoint import Checkpoint, Times
from penstock.store.background import CheckpointTask, FollowerTask, RetentionTask
from penstock.store.engine import Engine
from penstock.testing import ManualWorkers, SimulatedDisk, messages, open_store

ROOT = Path("/store")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def engine(disk: SimulatedDisk) -> Engine:
    store = open_store(ROOT, files=disk, spawn=ManualWorkers(), flush="none", retention=[])
    store.put_many(messages(20))
    assert store._engine is not None
    return store._engine


def test_a_round_dispatches_what_is_visible_and_then_sleeps(engine: Engine) -> None:
    task: FollowerTask = engine.following
    assert task.visible_offset() == engine.log.end_offset
    assert task.step() is not None, "more may come soon"
    assert engine.follower.progress == engine.log.end_offset
    assert task.step() is None


def test_a_round_without_a_descriptor_loses_nothing_and_comes_again(
    engine: Engine, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.plan.fail("pwrite", errno.EMFILE, path="progress")
    assert engine.following.step() == 0.5
    assert "no record is lost" in caplog.text
    disk.plan.heal()
    engine.following.step()
    assert engine.follower.progress == engine.log.end_offset


def test_a_checkpoint_says_no_more_than_is_durable(engine: Engine, disk: SimulatedDisk) -> None:
    task: CheckpointTask = engine.checkpoints
    engine.follower.catch_up()
    task.write()
    assert Checkpoint(disk, ROOT).read() == Times()
    engine.flusher.flush()
    task.write()
    times = Checkpoint(disk, ROOT).read()
    assert times.log_ms == engine.log.newest_time_ms
    assert times.queues_ms == times.index_ms == times.log_ms


def test_a_checkpoint_is_not_written_where_nothing_has_advanced(
    engine: Engine, disk: SimulatedDisk
) -> None:
    task = engine.checkpoints
    task.write()
    before = disk.plan.total
    task.write()
    assert disk.plan.total == before


def test_a_sync_of_derived_files_that_fails_stops_the_store(
    engine: Engine, disk: SimulatedDisk
) -> None:
    engine.follower.catch_up()
    disk.plan.fail("sync", errno.EIO, path="consumequeue", times=1)
    assert engine.checkpoints.step() > 0
    assert engine.flusher.failure is not None
    assert "a sync of queues" in str(engine.flusher.failure)


def test_retention_that_fails_is_told_and_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("no")

    monkeypatch.setattr(engine.retention, "run", fails)
    task = RetentionTask(engine.retention, engine.flusher, 7000)
    assert [task.step(), task.step()] == [7.0, 7.0]
    assert caplog.text.count("the next run retries it") == 2
