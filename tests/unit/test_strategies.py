"""What single strategies do beyond their contracts: options, limits, figures, what they say when refused."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import penstock
from penstock import BusyError, Durability, PutStatus
from penstock.appendlock import AppendLock
from penstock.clock import Clock
from penstock.files import File, Files
from penstock.handover import HandOver
from penstock.testing import FaultyFiles, ManualClock, ManualWorkers, make_context, open_store
from penstock_alloc.ahead import Ahead
from penstock_alloc.preallocate import PreallocateAllocator, PreallocateOptions

SIZE = 64 * 1024
DIRECT: dict[str, Any] = {"index.feed": "direct"}


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


def test_other_processes_see_only_what_is_committed(tmp_path: Path) -> None:
    workers, clock = ManualWorkers(), ManualClock()
    with pooled(tmp_path / "s", workers, clock=clock) as store:
        store.put("t", b"held back")
        segment = next((tmp_path / "s" / "commitlog").iterdir())
        assert b"held back" not in segment.read_bytes()
        workers.run("penstock-follow")
        with penstock.open(tmp_path / "s", read_only=True, environ={}) as reader:
            assert reader.max_offset("t") == 0
        clock.now_ms += 200
        workers.run("penstock-commit")
        assert b"held back" in segment.read_bytes()
        workers.run("penstock-follow")
        with penstock.open(tmp_path / "s", read_only=True, environ={}) as reader:
            assert [m.body for m in reader.scan("t")] == [b"held back"]


def test_a_reader_of_the_same_process_finds_what_was_put(tmp_path: Path) -> None:
    with pooled(tmp_path / "s", ManualWorkers()) as store:
        store.put("t", b"mine")
        assert [m.body for m in store.scan("t")] == [b"mine"]


def test_the_commit_service_waits_for_its_least_pages(tmp_path: Path) -> None:
    workers, clock = ManualWorkers(), ManualClock()
    options = {"least_pages": 2, "thorough_interval_ms": 1000}
    with pooled(tmp_path / "s", workers, clock=clock, options=options) as store:
        engine = store._engine
        assert engine is not None
        store.put("t", b"x" * 4000)
        clock.now_ms += 200
        assert workers.run("penstock-commit") == pytest.approx(0.2)
        assert engine.flusher.committed_offset == 0
        store.put("t", b"x" * 5000)
        workers.run("penstock-commit")
        assert engine.flusher.committed_offset == engine.log.end_offset
        store.put("t", b"little")
        clock.now_ms += 1000
        workers.run("penstock-commit")
        assert engine.flusher.committed_offset == engine.log.end_offset


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
    with pytest.raises(BusyError, match="in the making for 50 ms"):
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


def test_locked_segments_are_unlocked_when_they_are_full(tmp_path: Path) -> None:
    class CountingFiles(Files):
        locked = 0

        def lock_memory(self, memory: Any) -> None:
            self.locked += 1

        def unlock_memory(self, memory: Any) -> None:
            self.locked -= 1

    files, workers = CountingFiles(), ManualWorkers()
    context = make_context(tmp_path, files=files, spawn=workers)
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
        assert sum("made ahead and not used" in text for text in store.recovery.mended) == 2
        assert [m.body for m in store.scan("t")] == [b"x"]
        assert len(list((tmp_path / "s" / "commitlog").iterdir())) == 1


# --- group commit


def test_syncs_are_shared_and_each_waiter_is_told(tmp_path: Path) -> None:
    class SlowFiles(Files):
        def create(self, path: Path) -> File:
            made = super().create(path)
            return SlowFile(made.path, made.detach())

    class SlowFile(File):
        def sync(self) -> None:
            time.sleep(0.005)
            super().sync()

    with open_store(tmp_path / "s", files=SlowFiles(), flush="sync", write="file") as store:
        receipts: list[penstock.Receipt] = []

        def produce(queue: int) -> None:
            receipts.extend(store.put("t", b"x" * 100, queue=queue) for _ in range(20))

        threads = [threading.Thread(target=produce, args=(queue,)) for queue in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(receipts) == 160
        assert {receipt.durability for receipt in receipts} == {Durability.ON_DISK}
        assert store.stats()["flushes"] < 80


def test_a_batch_across_rolls_is_on_disk_whole(tmp_path: Path) -> None:
    for writer in ("mmap", "file"):
        with open_store(tmp_path / writer, flush="sync", write=writer) as store:
            receipts = store.put_many([penstock.Message("t", b"x" * 20_000) for _ in range(12)])
            assert {receipt.durability for receipt in receipts} == {Durability.ON_DISK}
            assert store.stats()["segments"] == 4
            last = receipts[-1]
            assert store.stats()["flushed_offset"] == last.log_offset + last.size
            assert [m.body for m in store.scan("t")] == [b"x" * 20_000] * 12


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


# --- the direct feed


def test_direct_and_follow_give_the_same_when_the_follower_is_far_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.handover.BYTES_MAX", 5000)
    monkeypatch.setattr("penstock.opening.HandOver", lambda: HandOver(5000))
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **DIRECT) as store:
        for number in range(500):
            store.put(
                "t", b"%d" % number + b"x" * (number % 700), queue=number % 3, keys=[f"k{number}"]
            )
        assert len(store.read("t", 0, 0, limit=1000).messages) == 167
        assert [m.body[:3] for m in store.find("t", "k499")] == [b"499"]
        for number in range(500, 520):
            store.put("t", b"%d" % number, keys=[f"k{number}"])
        assert [m.body for m in store.find("t", "k519")] == [b"519"]
        assert not list(store.verify())


def test_the_direct_feed_reads_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "s", spawn=ManualWorkers(), **DIRECT) as store:
        engine = store._engine
        assert engine is not None
        monkeypatch.setattr(type(engine.log), "batches", lambda *_: pytest.fail("the log was read"))
        for number in range(50):
            store.put("t", b"%d" % number)
        store.put_many([penstock.Message("t", b"m") for _ in range(50)])
        assert store.max_offset("t") == 100


def test_a_dispatcher_that_was_in_trouble_gets_what_it_missed(
    open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(spawn=ManualWorkers(), **{"index.feed": "direct"}) as store:
        engine = store._engine
        assert engine is not None
        index = engine.dispatchers[1]
        monkeypatch.setattr(index, "dispatch", lambda _: 1 / 0)
        for number in range(20):
            store.put("t", b"%d" % number, keys=[f"k{number}"])
        assert store.max_offset("t") == 20
        assert "ZeroDivisionError" in store.stats()["dispatchers"]["hash-index"]["error"]
        monkeypatch.undo()
        engine.follower.troubles.clear()
        store.put("t", b"20", keys=["k20"])
        for number in range(21):
            assert [m.body for m in store.find("t", f"k{number}")] == [b"%d" % number]


# --- many queues


def test_many_queues_need_few_open_files(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"index.consume-queue.open_files_max": 8}
    with open_store(tmp_path / "s", **chosen) as store:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for turn in range(2):
            store.put_many([
                penstock.Message(f"topic{number % 50}", b"%d" % turn, queue=number // 50)
                for number in range(1000)
            ])  # fmt: skip
            assert len(store.topics()) == 50
        assert sum(len(queues) for queues in store.topics().values()) == 1000
        for number in range(0, 1000, 7):
            assert len(store.read(f"topic{number % 50}", number // 50).messages) == 2
        # A segment has its file, and one for its map.
        limit = 8 + 2 * store.stats()["segments"]
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= limit


# --- a recycled segment and a reader elsewhere


def test_a_reader_elsewhere_never_takes_new_bytes_for_old_ones(tmp_path: Path) -> None:
    """It has the old segment's file open when the file becomes the next segment."""
    workers = ManualWorkers()
    with open_store(tmp_path / "s", spawn=workers, alloc="recycle") as store:
        for number in range(200):
            store.put("t", b"%d:" % number + b"o" * 1500)
        store.flush()
        store.topics()
        reader = penstock.open(tmp_path / "s", read_only=True, environ={})
        first = reader.read("t", 0, 0, 3).messages
        assert len(first) == 3
        store.discard_before(log_offset=store.stats()["log_end_offset"])
        workers.run("penstock-allocate")
        for number in range(200, 500):
            store.put("t", b"%d:" % number + b"n" * 1500)
            workers.run("penstock-allocate")
        assert store.stats()["strategies"]["alloc"]["segments_recycled"] > 0
        store.topics()
        with pytest.raises(penstock.PenstockError, match="outside what the store holds"):
            reader.at(first[0].log_offset)
        assert reader.read("t", 0, 0, 3).status == "OFFSET_TOO_SMALL"
        assert reader.damaged_reads == 0
        reader.close()


def test_busy_is_part_of_the_public_face() -> None:
    code = "import penstock; assert issubclass(penstock.BusyError, penstock.PenstockError)"
    subprocess.run([sys.executable, "-c", code], check=True)
