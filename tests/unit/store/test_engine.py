"""Group commit, and the append lock when the disk is stuck."""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import BusyError, Durability, PutStatus
from penstock._kernel import AppendLock
from penstock.durability.log_flusher import LogFlusher
from penstock.errors import ReadOnlyError
from penstock.files import File, Files
from penstock.log.commit_log import CommitLog
from penstock.runtime.clock import Clock
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store

SIZE = 64 * 1024
DIRECT: dict[str, Any] = {"index.feed": "direct"}


# --- group commit


def test_a_sync_that_takes_too_long_is_said_in_the_receipt(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"flush": "sync", "flush.sync.timeout_ms": 20}
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **chosen) as store:
        late = store.put("t", b"nobody syncs")
        assert (late.status, late.durability) == (PutStatus.FLUSH_DISK_TIMEOUT, Durability.UNKNOWN)
        quick = store.put("t", b"nobody waits", wait=False)
        assert (quick.status, quick.durability) == (PutStatus.PUT_OK, Durability.ACCEPTED)


def test_none_never_syncs_the_log_by_itself(tmp_path: Path) -> None:
    workers, clock = ManualWorkers(), ManualClock()
    with open_store(tmp_path / "s", spawn=workers, clock=clock, flush="none") as store:
        for _ in range(100):
            store.put("t", b"x" * 3000)
            clock.now_ms += 60_000
            workers.run_all()
        assert store.stats()["flushes"] == 0
        assert store.submit("t", b"asked for").result(10).durability is Durability.ON_DISK


# --- the append lock


def test_a_lock_held_too_long_turns_the_others_away() -> None:
    lock = AppendLock(30, Clock().monotonic_ns)
    lock.acquire()
    caught: list[BusyError] = []

    def put() -> None:
        try:
            lock.acquire()
        except BusyError as error:
            caught.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    thread.join(30)
    assert caught
    assert caught[0].waited_ms >= 30
    lock.release()
    assert lock.stats()["refused"] == lock.stats()["waits"] == 1
    assert lock.stats()["longest_hold_us"] >= 30_000
    with lock:
        pass


def test_nobody_is_kept_out_by_holders_that_let_others_run_only_while_they_hold_it() -> None:
    lock = AppendLock(60_000, Clock().monotonic_ns)
    is_over = threading.Event()

    def hold() -> None:
        while not is_over.is_set():
            with lock:
                # As a write to the disk does.
                time.sleep(0.002)

    def take() -> None:
        for _ in range(20):
            with lock:
                pass
        is_over.set()

    threads = [threading.Thread(target=job, daemon=True) for job in (hold, take)]
    for thread in threads:
        thread.start()
    assert is_over.wait(60)


def test_a_waiter_that_one_thread_holds_while_another_tells_is_told() -> None:
    """Looked at by a thread that knows of less, while another one tells it."""
    flusher = LogFlusher(cast("CommitLog", None), 100)
    told: list[int] = []

    class Interleaved(deque[tuple[int, Callable[[], None]]]):
        is_first = True

        def copy(self) -> "Interleaved":
            seen = super().copy()
            if self.is_first:
                self.is_first = False
                flusher._flushed = 200
                flusher._tell()
            return seen

    flusher._waiting = Interleaved([(200, lambda: told.append(1))])
    flusher._tell()
    assert told == [1]


@pytest.mark.parametrize("interrupted", ["before", "after"])
def test_a_waiter_whose_teller_is_interrupted_is_told(interrupted: str) -> None:
    flusher = LogFlusher(cast("CommitLog", None), 100)
    told: list[int] = []
    interrupts = [KeyboardInterrupt()]

    def tell() -> None:
        if interrupted == "after":
            told.append(1)
        if interrupts:
            raise interrupts.pop()
        told.append(2)

    flusher._waiting.append((100, tell))
    with pytest.raises(KeyboardInterrupt):
        flusher._tell()
    flusher._tell()
    assert told[-1] == 2
    assert not flusher._waiting


def test_a_stuck_disk_is_back_pressure_not_a_pile_of_threads(tmp_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class StuckFiles(Files):
        def create(self, path: Path) -> File:
            made = super().create(path)
            if path.name.endswith(f"{SIZE:020d}"):
                entered.set()
                gate.wait(30)
            return made

    chosen: dict[str, Any] = {"log.busy_ms": 40}
    with open_store(tmp_path / "s", files=StuckFiles(), clock=_RealClock(), **chosen) as store:
        store.put("t", b"x" * 60_000)
        roll = threading.Thread(target=store.put, args=("t", b"y" * 60_000))
        roll.start()
        assert entered.wait(30)
        with pytest.raises(BusyError, match="nothing was stored"):
            store.put("t", b"turned away")
        gate.set()
        roll.join()
        assert [m.body[:1] for m in store.scan("t")] == [b"x", b"y"]
        figures = store.stats()["append_lock"]
        assert figures["refused"] == 1
        assert figures["longest_hold_us"] >= 40_000


@pytest.mark.slow
def test_a_close_waits_for_a_stuck_put(tmp_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class StuckFiles(Files):
        def create(self, path: Path) -> File:
            if path.name.endswith(f"{SIZE:020d}"):
                entered.set()
                gate.wait(30)
            return super().create(path)

    chosen: dict[str, Any] = {"log.busy_ms": 20}
    store = open_store(tmp_path / "s", files=StuckFiles(), clock=_RealClock(), **chosen)
    store.put("t", b"x" * 60_000)
    put = threading.Thread(target=store.put, args=("t", b"y" * 60_000))
    put.start()
    assert entered.wait(30)
    close = threading.Thread(target=store.close)
    close.start()
    close.join(0.2)
    assert close.is_alive(), "it waits, and is not turned away as a put would be"
    gate.set()
    put.join()
    close.join()
    with open_store(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert len(list(store.scan("t"))) == 2


class _RealClock(ManualClock):
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


def test_what_retention_may_delete_is_durable_and_dispatched_first() -> None:
    disk = SimulatedDisk()
    with open_store(Path("/s"), files=disk, spawn=ManualWorkers(), flush="none") as store:
        engine = store._engine
        assert engine is not None
        store.put("t", b"x")
        assert engine.safe_offset() == 0
        engine.retention.make_safe()
        assert engine.safe_offset() == engine.log.end_offset > 0
        assert engine.follower.progress == engine.log.end_offset


def test_the_allocator_is_told_of_each_full_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ManualWorkers()
    with open_store(Path("/s"), files=SimulatedDisk(), spawn=workers, flush="none") as store:
        engine = store._engine
        assert engine is not None
        full: list[Path] = []
        monkeypatch.setattr(engine.log.tail.allocator, "sealed", full.append)
        for _ in range(3):
            store.put("t", b"x" * 40_000)
        workers.run("penstock-follow")
        assert full == [segment.path for segment in engine.log.log.segments[:2]]


def test_puts_are_refused_for_the_failure_first_and_then_for_what_retention_says() -> None:
    with open_store(Path("/s"), files=SimulatedDisk(), spawn=ManualWorkers()) as store:
        engine = store._engine
        assert engine is not None
        assert engine.refusal() is None
        engine.retention.refusal = "the disk is full"
        refused = engine.refusal()
        assert isinstance(refused, ReadOnlyError)
        assert "the disk is full" in str(refused)
        failure = engine.flusher.fail("for this test")
        assert engine.refusal() is failure
        engine.flusher._failures.clear()
        engine.retention.refusal = None
        assert engine.refusal() is None
