"""The work beside the puts: following, checkpoints, group commit, the lock on a stuck disk, and the end of a store."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.lanes import eventually
from tests.unit.log.logs import Held

from penstock import BusyError, Message
from penstock.contracts import FlushPolicy
from penstock.durability.progress import Times
from penstock.durability.side_folder import SideFolder, fingerprint, vouched_for
from penstock.errors import StorageError, StoreClosedError, StoreFailedError
from penstock.files import File, Files
from penstock.files.lock_file import Lock
from penstock.store.engine import CheckpointTask, Engine, FollowerTask
from penstock.store.store import Store
from penstock.testing import (
    InlineWorkers,
    ManualClock,
    ManualWorkers,
    SimulatedDisk,
    messages,
    open_store,
)
from penstock_index.hash_index import HashIndexDispatcher

ROOT = Path("/s")
CONFIG = SimpleNamespace(
    index=SimpleNamespace(follow_interval_ms=50, flush_interval_ms=1500),
    retention=SimpleNamespace(interval_ms=1500),
)


# --- each step alone, among parts that say what the test wants


class Round:
    """A task that follows a log of 100 bytes, of which `reached` are dispatched by a round."""

    def __init__(self, reached: int = 100) -> None:
        self.reached = reached
        self.visible_offset = self.end_offset = 100
        self.progress, self.state = 0, SimpleNamespace(visible_offset=0)
        self.errors: dict[str, OSError] = {}
        self.appender = SimpleNamespace(is_idle=False, is_pausing=False)
        self.log, self.tail = self, SimpleNamespace(sealed=[])
        me: Any = self
        engine: Any = SimpleNamespace(
            log=self, flusher=self, follower=self, progress=self, wakes=self, clock=self, config=CONFIG,
            policy=SimpleNamespace(waits=False), report_sealed=None, copying=None,
        )  # fmt: skip
        self.task = FollowerTask(engine)
        self.task.worker = me

    def catch_up(self) -> None:
        assert self.appender.is_pausing
        if "catch_up" in self.errors:
            raise self.errors.pop("catch_up")
        self.progress = self.reached

    def thread_ns(self) -> int:
        return 0

    def publish(self, visible_offset: int) -> None:
        if "publish" in self.errors:
            raise self.errors.pop("publish")
        self.state.visible_offset = visible_offset

    def wake(self) -> bool:
        return False

    def fail(self, reason: str) -> Exception:
        return StoreFailedError(reason, 0)


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


def test_a_limit_of_the_system_makes_a_round_pause_and_another_error_ends_it() -> None:
    for call, error in (("catch_up", OSError), ("publish", StoreFailedError)):
        each = Round()
        each.errors[call] = OSError(errno.EMFILE, "too many open files")
        assert each.task.step() == 0.5
        each.progress = 0
        each.errors[call] = OSError(errno.EIO, "broken")
        with pytest.raises(error, match="broken"):
            each.task.step()
        each.task.step()
        assert each.state.visible_offset == 100


@pytest.mark.parametrize(("dispatched_ms", "derived_ms"), [(5, 5), (9, 7)])
def test_a_checkpoint_claims_no_more_than_is_on_disk(dispatched_ms: int, derived_ms: int) -> None:
    calls: list[object] = []
    errors: list[OSError] = [OSError(errno.EIO, "broken"), OSError(errno.ENFILE, "no descriptor")]

    def flush() -> int:
        calls.append("flush")
        if errors:
            raise errors.pop()
        return 20

    def fail(reason: str) -> Exception:
        calls.append("fail")
        return StoreFailedError(reason, 0)

    parts: Any = SimpleNamespace(
        name="a", progress=30, state=SimpleNamespace(dispatched={}, visible_offset=0), failure=None,
        flushed_offset=40, flushed_time_ms=7, dispatched_time_ms=dispatched_ms,
        flush=flush, fail=fail, sync=lambda: calls.append("sync"),
        write=calls.append, collect_results=lambda: calls.append("settle"),
    )  # fmt: skip
    engine: Any = SimpleNamespace(
        dispatchers=[parts], follower=parts, flusher=parts, progress=parts, checkpoint=parts,
        config=CONFIG,
    )  # fmt: skip
    task = CheckpointTask(engine)
    assert (task.step(), task.durable_offset) == (1.5, 0), "a limit is retried, and stops nothing"
    assert (task.step(), task.durable_offset) == (1.5, 0), "the next put raises the error"
    assert task.step() == 1.5
    assert task.durable_offset == 20
    wrote = ["settle", "flush", "sync", Times(7, derived_ms, derived_ms)]
    assert calls == ["settle", "flush", "settle", "flush", "fail", *wrote]
    assert (parts.state.dispatched, parts.state.visible_offset) == ({"a": 20}, 30)
    parts.flushed_offset += 1
    parts.failure = "it failed"
    assert task.step() == 1.5
    assert calls[9:] == ["settle"]


def test_a_run_of_retention_that_raises_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ill() -> None:
        raise RuntimeError("a plugin is ill")

    flusher = SimpleNamespace(failure=None)
    engine: Any = SimpleNamespace(
        run_retention=ill, flusher=flusher, config=CONFIG, is_opening=False
    )
    assert (Engine.retain(engine), Engine.retain(engine)) == (1.5, 1.5)
    assert caplog.text.count("RuntimeError: a plugin is ill") == 2


class Failing(FlushPolicy):
    """Its work fails."""

    name = "failing"
    waits = False

    def start(self) -> None:
        self.context.spawn("failing", self.work)

    def work(self) -> None:
        raise ValueError("no such thing")


def test_a_store_whose_background_work_has_failed_takes_no_more_puts(tmp_path: Path) -> None:
    workers = ManualWorkers()
    given: dict[str, Any] = {"strategies": [Failing], "flush": "failing", "spawn": workers}
    store = open_store(tmp_path / "s", **given)
    store.put("t", b"x", queue=0)
    workers.run_all()
    with pytest.raises(StoreFailedError, match=r"failing failed: .*no such thing"):
        store.put("t", b"y", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()
    with open_store(tmp_path / "s") as again:
        assert [message.body for message in again.scan("t")] == [b"x"]


# --- the append lock


class Ticking(ManualClock):
    """A second passes whenever somebody looks."""

    looks = 0

    def monotonic_ns(self) -> int:
        self.looks += 1
        return self.looks * 10**9


Stuck = tuple[Store, Held, Ticking, threading.Thread]


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    """A store one of whose threads holds the append lock, because the disk hangs."""
    files, clock = Held(), Ticking()
    given: dict[str, Any] = {"log.busy_ms": 40, "alloc": "on-demand"}
    store = open_store(tmp_path / "s", files=files, clock=clock, spawn=ManualWorkers(), **given)
    store.put("t", b"x" * 60_000, queue=0)
    put = threading.Thread(target=store.put, args=("t", b"y" * 60_000))
    put.start()
    files.asked.wait()
    yield store, files, clock, put
    files.may_go_on.set()
    put.join()
    store.close()


def test_a_stuck_disk_is_back_pressure_not_a_pile_of_threads(stuck: Stuck) -> None:
    store, files, _, put = stuck
    with pytest.raises(BusyError, match="nothing was stored"):
        store.put("t", b"turned away", queue=0)
    files.may_go_on.set()
    put.join()
    assert [m.body[:1] for m in store.scan("t")] == [b"x", b"y"]
    assert store.stats()["append_lock"]["refused"] == 1


def is_closed_to_puts(store: Store) -> bool:
    try:
        store.put("t", b"turned away", queue=0)
    except StoreClosedError:
        return True
    except BusyError:
        return False
    return False


def test_a_close_waits_for_a_stuck_put(stuck: Stuck, tmp_path: Path) -> None:
    """It is not turned away as a put would be."""
    store, files, _, _ = stuck
    close = threading.Thread(target=store.close)
    close.start()
    eventually(lambda: is_closed_to_puts(store))
    assert close.is_alive()
    files.may_go_on.set()
    close.join()
    with open_store(tmp_path / "s") as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"
        assert len(list(again.scan("t"))) == 2


# --- the end


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def filled(disk: SimulatedDisk, **given: Any) -> Store:
    made = open_store(ROOT, files=disk, spawn=ManualWorkers(), flush="none", retention=[], **given)
    made.put_many(messages(20))
    return made


def test_a_dispatcher_that_is_behind_leaves_the_store_unclean(disk: SimulatedDisk) -> None:
    """RocketMQ 5 does not repair a cleanly closed store whose queues lag the log."""
    store = filled(disk)
    disk.plan.fail("pwrite", errno.EIO, path="consumequeue")
    with pytest.raises(StorageError, match="consume-queue lags the log"):
        store.close()
    assert disk.exists(ROOT / "abort")
    assert SideFolder(disk, ROOT).read_clean() is None
    disk.plan.heal()
    with open_store(ROOT, files=disk, spawn=ManualWorkers()) as again:
        assert sum(again.max_offset(t, q) for t, qs in again.topics().items() for q in qs) == 20


class Unclosable(HashIndexDispatcher):
    name: ClassVar[str] = "hash-index"

    def close(self) -> None:
        raise ValueError("no")


def test_one_part_that_cannot_be_closed_keeps_no_other_open(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    filled(disk, strategies=[Unclosable]).close()
    assert "failed; the next open for writing recovers from it" in caplog.text
    assert not disk.is_locked(ROOT / "lock")


def test_the_lock_is_released_after_the_dispatchers_have_closed_their_files(tmp_path: Path) -> None:
    calls: list[str] = []

    class Closing(HashIndexDispatcher):
        name: ClassVar[str] = "hash-index"

        def close(self) -> None:
            calls.append("closed")
            super().close()

    class WatchedFiles(Files):
        def lock(self, path: Path) -> Lock | None:
            taken = super().lock(path)
            assert taken is not None
            release = taken.release

            def watched() -> None:
                calls.append("released")
                release()

            taken.release = watched  # type: ignore[method-assign] # to see when it happens
            return taken

    open_store(tmp_path / "s", strategies=[Closing], files=WatchedFiles()).close()
    assert calls == ["closed", "released"]


def test_a_clean_close_gives_back_what_was_allocated_ahead_before_it_vouches(
    disk: SimulatedDisk,
) -> None:
    store = filled(disk)
    before = disk.used
    store.close()
    assert disk.used < before
    clean = SideFolder(disk, ROOT).read_clean()
    assert clean is not None
    assert clean.digest == fingerprint(disk, vouched_for(ROOT))


class EagerRetention(InlineWorkers):
    """Workers of which the one for retention runs at once."""

    def __call__(self, name: str, step: Any, wakes: object = None) -> Any:
        made = super().__call__(name, step, wakes)
        if name == "penstock-retain":
            made.step()
        return made


def test_a_file_that_retention_gives_away_before_all_has_begun_is_noted_once(
    tmp_path: Path,
) -> None:
    """It was noted twice, and filled with zeros once more when it was a segment again."""
    with open_store(tmp_path) as store:
        store.put_many([Message("t", bytes(19_000), queue=0)] * 13)
    settings: dict[str, Any] = {
        "retention": "size",
        "retention.size.bytes_max": 3 * 65536 + 1,
        "alloc": "recycle",
    }
    with open_store(tmp_path, spawn=EagerRetention(), **settings) as store:
        spares = [*(tmp_path / "penstock").glob("spare-*")]
        assert len(spares) == store.stats()["strategies"]["alloc"]["spares"] == 2


class OnceInterrupted(File):
    """A file whose first read waits for something else."""

    before_read: ClassVar[list[Callable[[], object]]] = []

    def pread(self, size: int, position: int) -> bytes:
        if "commitlog" in str(self.path) and self.before_read:
            self.before_read.pop()()
        return super().pread(size, position)


class InterruptedFiles(Files):
    """Opens such files."""

    def open(self, path: Path, *, writable: bool = False) -> File:
        return OnceInterrupted(path, super().open(path, writable=writable).detach())


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_read_under_way_keeps_a_file_that_retention_removes_or_another_thread_closes(
    is_closed: bool, tmp_path: Path
) -> None:
    """It read through a descriptor that was closed, or was another file's by then."""
    with open_store(tmp_path) as store:
        store.put_many([Message("t", b"x" * 19_000, queue=0)] * 13)
    with open_store(tmp_path) as store:
        reader = open_store(tmp_path, read_only=True, files=InterruptedFiles())

        def gone() -> None:
            if is_closed:
                reader.close()
            else:
                assert store.discard_before(log_offset=1 << 20) > 0
                reader.stats()

        OnceInterrupted.before_read.append(gone)
        (message,) = reader.read("t", 0, limit=1).messages
        assert message.body == b"x" * 19_000
        assert not OnceInterrupted.before_read
        reader.close()
