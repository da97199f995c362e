"""The background work of a store: each step by itself, with no thread and no clock but the test's."""

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.durability.checkpoint import Checkpoint, Times
from penstock.errors import StoreFailedError, SystemLimitError
from penstock.retention.runner import Retention
from penstock.store.background import CheckpointTask, FollowerTask, RetentionTask
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


# --- each step alone, among parts that say what the test wants


class Round:
    """A task that follows a log of 100 bytes, of which `reached` are dispatched by a round."""

    def __init__(self, reached: int = 100, *, waits: bool = False, awaited: bool = False) -> None:
        self.reached = reached
        self.flushed_offset, self.committed_offset, self.end_offset = 60, 100, 100
        self.progress, self.state = 0, SimpleNamespace(visible_offset=0)
        self.troubles: dict[str, object] = {}
        self.awaited, self.cpu_ns, self.calls = awaited, 0, list[str]()
        self.appender = SimpleNamespace(is_idle=False, is_pausing=False)
        self.log, self.tail = self, SimpleNamespace(sealed=[])
        self.sealed: list[object] = []
        me: Any = self
        policy: Any = SimpleNamespace(appender_waits=waits)
        self.task = FollowerTask(me, me, me, policy, me, me, me, 50, self.sealed.append)
        self.task.worker = me

    def catch_up(self) -> None:
        assert self.appender.is_pausing
        self.progress = self.reached
        self.cpu_ns += 2_000_000

    def thread_ns(self) -> int:
        return self.cpu_ns

    def publish(self, visible_offset: int) -> None:
        self.calls.append("write")
        self.state.visible_offset = visible_offset

    def wake(self) -> bool:
        self.calls.append("wake")
        return self.awaited

    def fail(self, reason: str) -> Exception:
        return StoreFailedError(reason, 0)


def test_a_round_that_got_on_pauses_and_a_reader_that_waits_shortens_it() -> None:
    assert Round().task.step() == 0.05
    quick = Round(awaited=True)
    quick.cpu_ns = 3_000_000
    assert quick.task.step() == 0.004
    slow = Round(awaited=True)
    slow.cpu_ns = -(10**9)
    slow.thread_ns = lambda: 10**9 if slow.progress else 0  # type: ignore[method-assign] # a slow round
    assert slow.task.step() == 0.05
    assert (slow.appender.is_pausing, slow.appender.is_idle) == (True, False)


def test_a_round_that_finds_all_dispatched_sleeps_until_it_is_woken() -> None:
    done = Round()
    done.progress = 100
    done.state.visible_offset = 99
    assert done.task.step() is None
    assert (done.appender.is_pausing, done.appender.is_idle) == (False, True)
    assert (done.calls, done.state.visible_offset) == (["write", "wake"], 100)
    assert done.task.step() is None
    assert done.calls[2:] == [], "nothing new is published, so nobody is woken"
    done.task.wake()
    assert (done.appender.is_idle, done.calls[2:]) == (False, ["wake"])


def test_what_another_thread_dispatched_meanwhile_is_published_at_once() -> None:
    late = Round(0)

    class Flags:
        is_pausing = False

        def __setattr__(self, name: str, value: object) -> None:
            late.progress = 100 if (name, value) == ("is_idle", True) else late.progress
            object.__setattr__(self, name, value)

    flags: Any = Flags()
    late.appender = flags
    assert late.task.step() == 0
    assert flags.is_idle is False


def test_readers_see_what_is_durable_only_where_puts_wait() -> None:
    for waits, visible in ((True, 60), (False, 100)):
        each = Round(waits=waits)
        assert each.task.visible_offset() == visible
        each.task.wake_if_durable()
        each.appender.is_pausing = True
        each.task.wake_if_durable()
        assert each.calls == ["wake"] * waits


def test_full_segments_are_told_once_in_their_order() -> None:
    each = Round()
    each.tail.sealed = [1, 2, 3]
    each.task.step()
    each.task.announce_sealed()
    assert (each.sealed, each.tail.sealed) == ([1, 2, 3], [])


def test_a_progress_file_that_cannot_be_written_stops_the_store_but_for_a_limit() -> None:
    each, errors = Round(), [errno.EMFILE, errno.EIO]

    def publish(visible_offset: int) -> None:
        raise OSError(errors.pop(0), "no")

    each.publish = publish  # type: ignore[method-assign] # it fails
    assert each.task.step() == 0.5
    each.progress, each.reached, each.state.visible_offset = 100, 200, 100
    with pytest.raises(StoreFailedError, match="the progress file could not be written"):
        each.task.step()


@pytest.mark.parametrize(("dispatched_ms", "derived_ms"), [(5, 5), (9, 7)])
def test_a_checkpoint_claims_no_more_than_is_on_disk(dispatched_ms: int, derived_ms: int) -> None:
    calls: list[object] = []

    def flush() -> int:
        calls.append("flush")
        return 20

    parts: Any = SimpleNamespace(
        name="a", progress=30, state=SimpleNamespace(dispatched={}, visible_offset=0), failure=None,
        flushed_offset=40, flushed_time_ms=7, dispatched_time_ms=dispatched_ms,
        flush=flush, sync=lambda: calls.append("sync"),
        write=calls.append, settle=lambda: calls.append("settle"),
    )  # fmt: skip
    task = CheckpointTask([parts], parts, parts, parts, parts, 1500)
    assert task.step() == 1.5
    assert calls == ["settle", "flush", "sync", Times(7, derived_ms, derived_ms)]
    assert (parts.state.dispatched, parts.state.visible_offset) == ({"a": 20}, 30)
    parts.flushed_offset += 1
    parts.failure = "it failed"
    assert task.step() == 1.5
    assert calls[4:] == ["settle"]
