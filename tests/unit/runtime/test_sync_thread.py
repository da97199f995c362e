"""Syncs by the kernel's gate within one process: what it syncs and how, what it looks at, what it leaves behind."""

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.conftest import OpenStore
from tests.lanes import eventually

import penstock
from penstock import Durability, _kernel
from penstock._kernel import (
    FLUSHED,
    Appender,
    AppendLock,
    Extent,
    GatherBuffer,
    RecordEncoder,
    SyncGate,
)
from penstock.contracts import SegmentChannel
from penstock.durability.log_flusher import SyncThread
from penstock.durability.progress import Progress, State, encode_slot
from penstock.errors import StoreFailedError
from penstock.files import File, Files
from penstock.format.record import RecordFields, encode_record
from penstock.runtime.workers import run_aside
from penstock.testing import FaultyFiles, InlineWorkers, ManualWorkers, open_store
from penstock_alloc.writers import MmapChannel, MmapWriter

WRITERS = ["mmap", "file"]


# --- what is gathered


def test_gathered_bytes_follow_each_other_and_are_dropped_once_written() -> None:
    buffer = GatherBuffer()
    assert buffer.put(100, b"abc")
    assert buffer.put(103, b"def")
    assert buffer.peek() == (100, b"abcdef")
    assert buffer.put(106, b"g")
    buffer.drop(106)
    assert buffer.peek() == (106, b"g")
    buffer.drop(107)
    assert buffer.peek()[1] == b""


def test_what_an_interrupted_append_left_is_written_over() -> None:
    buffer = GatherBuffer()
    assert buffer.put(100, b"abc")
    assert buffer.put(103, b"interrupted")
    assert buffer.put(103, b"new")
    assert buffer.peek() == (100, b"abcnew")
    assert buffer.put(103, b"again")
    buffer.drop(106)
    assert buffer.peek() == (103, b"again"), "it was put there after the look"
    assert buffer.put(90, b"earlier")
    assert buffer.peek() == (90, b"earlier")


def test_gathered_bytes_leave_no_gap_and_have_a_limit() -> None:
    buffer = GatherBuffer()
    assert buffer.put(0, b"abc")
    assert not buffer.put(4, b"a gap")
    assert not buffer.put(3, bytes(buffer.room))
    assert buffer.put(3, bytes(buffer.room - 3))
    assert not buffer.put(buffer.room, b"x")


def test_gathered_bytes_that_cannot_be_written_are_lost_and_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    buffer = GatherBuffer()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert buffer.put(0, b"abc")
        for _ in range(2):
            with pytest.raises(OSError, match="gathered records could not be written"):
                buffer.commit(descriptor)
        assert not buffer.put(3, b"more")
    finally:
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS)
def test_batches_larger_than_what_gathers_are_written_in_order(write: str, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s", flush="sync", write=write, environ={}) as store:
        bodies = []
        for number in range(4):
            batch = [b"%d of %d" % (n, number) * 100 for n in range(3000)]
            store.put("t", b"%d single" % number, wait=number % 2 == 0, queue=0)
            receipts = store.put_many([penstock.Message("t", body, queue=0) for body in batch])
            assert receipts[0].durability is Durability.ON_DISK
            bodies += [b"%d single" % number, *batch]
        assert [m.body for m in store.scan("t")] == bodies


# --- whose syncs it does


def sync_threads() -> set[str]:
    """Return the threads of the kernel that sync in this process."""
    found = set[str]()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/self/task/{task}/comm").read_text()
            found |= {task} if name.strip() == "penstock-sync" else set()
    return found


class _Hooked(MmapChannel):
    flushes, descriptor = 0, None

    def flush(self) -> None:
        type(self).flushes += 1
        super().flush()


class HookedWriter(MmapWriter):
    """A third party's, put over a built-in one: its `flush` must not be passed over."""

    name = "hooked"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return _Hooked(file, capacity)


def test_a_channel_with_a_flush_of_its_own_is_asked(tmp_path: Path) -> None:
    with open_store(
        tmp_path / "s", strategies=[HookedWriter], write="hooked", flush="sync"
    ) as store:
        flushes = _Hooked.flushes
        assert store.put("t", b"x", queue=0).is_durable
        assert _Hooked.flushes == flushes + 1


@pytest.mark.parametrize("write", WRITERS)
def test_files_that_are_not_the_systems_alone_are_synced_by_their_own_way(
    write: str, open_small: OpenStore
) -> None:
    files = FaultyFiles()
    with open_small(files=files, flush="sync", write=write) as store:
        for number in range(30):
            syncs = files.plan.counts["sync"]
            assert store.put("t", b"%d" % number + bytes(3000), queue=0).is_durable
            assert files.plan.counts["sync"] > syncs


def test_a_store_has_one_thread_that_syncs_and_none_with_workers_of_its_own(
    open_small: OpenStore,
) -> None:
    before = sync_threads()
    with open_small(flush="none", spawn=ManualWorkers()):
        assert sync_threads() <= before
    with open_small(flush="none"):
        # It names itself when it runs.
        eventually(lambda: len(sync_threads() - before) == 1)


class BrokenChannel(MmapChannel):
    descriptor = None

    def flush(self) -> None:
        raise ZeroDivisionError


class BrokenWriter(MmapWriter):
    """A third party's whose `flush` has a bug."""

    name = "broken"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return BrokenChannel(file, capacity)


@pytest.mark.parametrize("spawn", [None, InlineWorkers()])
def test_any_exception_of_a_flush_fails_the_store(
    spawn: ManualWorkers | None, tmp_path: Path
) -> None:
    store = open_store(
        tmp_path / "s", strategies=[BrokenWriter], write="broken", flush="sync", spawn=spawn
    )
    for _ in range(2):
        with pytest.raises(StoreFailedError, match=r"sync of the log failed \(ZeroDivisionError"):
            store.put("t", b"x", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_round_that_was_interrupted_has_failed_nothing_and_is_repeated(
    open_small: OpenStore,
) -> None:
    files = FaultyFiles()
    store = open_small(files=files, flush="sync", spawn=InlineWorkers())
    interrupted = list[str]()

    def interrupt(call: str, path: Path) -> None:
        if call == "sync" and "commitlog" in str(path) and not interrupted:
            interrupted.append(call)
            raise KeyboardInterrupt

    files.plan.watch = interrupt
    with pytest.raises(KeyboardInterrupt):
        store.put("t", b"1", queue=0)
    assert interrupted
    assert store.stats()["flushed_offset"] == 0
    assert store.put("t", b"2", queue=0).is_durable
    assert [m.body for m in store.scan("t")] == [b"1", b"2"]
    store.close()


# --- what it looks at


@pytest.mark.parametrize("how", ["removed", "another"])
@pytest.mark.parametrize("write", WRITERS)
def test_a_segment_that_lost_its_name_is_not_durable(
    how: str, write: str, open_small: OpenStore, tmp_path: Path
) -> None:
    store = open_small(flush="sync", write=write)
    durable = store.put("t", b"kept", queue=0).size
    (segment,) = (tmp_path / "store" / "commitlog").iterdir()
    bytes_ = segment.read_bytes()
    segment.unlink()
    if how == "another":
        segment.write_bytes(bytes_)
    with pytest.raises(StoreFailedError, match="the segment was removed") as caught:
        store.put("t", b"lost", queue=0)
    assert caught.value.durable_offset == durable
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.parametrize("write", WRITERS)
def test_the_mark_says_what_a_receipt_says(
    write: str, open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small(flush="sync", write=write) as store:
        for number in range(30):
            receipt = store.put("t", b"%d" % number + bytes(3000), queue=0)
            state = Progress(Files(), tmp_path / "store").read()
            assert state.flushed_offset >= receipt.log_offset + receipt.size
            assert state.last_time_ms >= receipt.store_time_ms


def test_many_segments_may_wait_for_one_sync(open_small: OpenStore, tmp_path: Path) -> None:
    with open_small(flush="none", write="mmap") as store:
        for number in range(100):
            store.put("t", b"%d:" % number + bytes(40_000), queue=0)
        assert len(list((tmp_path / "store" / "commitlog").iterdir())) >= 100
        assert store.flush() == store.stats()["log_end_offset"]
        assert [int(m.body.split(b":")[0]) for m in store.scan("t")] == list(range(100))


# --- the gate alone


def gate_at(path: Path) -> tuple[Appender, SyncGate]:
    """Return a gate, and the appender that it was made with; the progress file is at the path."""
    encoder = RecordEncoder(bytes(8), crc_property=False, body_bytes_max=4096)
    appender = Appender(encoder, AppendLock(1000, time.monotonic_ns), lambda _draft: None)
    gate = SyncGate(appender, 2, 0, 0)
    mark = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        gate.start(0, mark)
    finally:
        os.close(mark)
    return appender, gate


def test_a_failure_before_the_first_mark_leaves_a_progress_file_that_can_be_read(
    tmp_path: Path,
) -> None:
    """A worker that failed while the gate was started made the store one "of another version", which nobody could open."""
    (tmp_path / "penstock").mkdir()
    progress = Progress(Files(), tmp_path)
    progress.write()
    encoder = RecordEncoder(bytes(8), crc_property=False, body_bytes_max=4096)
    appender = Appender(encoder, AppendLock(1000, time.monotonic_ns), lambda _draft: None)
    gate = SyncGate(appender, 2, 0, 0)
    with (tmp_path / "penstock" / "progress").open("r+b") as file:
        gate.start(1, file.fileno(), None, encode_slot(State(), 0))
    gate.fail(0)
    assert gate.close(60_000)
    assert Progress(Files(), tmp_path).read().failed


def test_what_waits_for_a_sync_does_not_wait_in_the_thread_that_syncs(tmp_path: Path) -> None:
    """A garbage collection there closed a store that nobody held, which waited a minute for the sync that it was in."""
    _, gate = gate_at(tmp_path / "mark")
    synced, ended = threading.Event(), list[bool]()

    def close() -> None:
        ended.append(synced.wait(60))

    gate.add_by(0, 8, lambda _end: run_aside(close))
    assert gate.wait(8, 1, 1) == FLUSHED
    assert ended == []
    synced.set()
    assert gate.close(60_000)


def test_a_descriptor_or_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    appender, gate = gate_at(tmp_path / "mark")
    assert appender in gc.get_referents(gate), "the gate writes into it"
    none = bytes(tmp_path / "none")
    with pytest.raises(OSError, match="Bad file descriptor"):
        SyncGate(appender, 2, 0, 0).start(0, 1 << 20)
    with (tmp_path / "mark").open() as file:
        number = file.fileno()
        with pytest.raises(OSError, match="No such file"):
            gate.add(0, 8, number, none, none, None, Extent(8), None)
    assert gate.close(60_000)


def test_a_flush_waits_for_a_segment_that_has_begun_and_is_not_known_yet(tmp_path: Path) -> None:
    """Whoever appends begins it and tells the gate in a moment; the flush in between said that the segment was removed."""
    size, files, found = 4096, list[Any](), list[int]()
    _, gate = gate_at(tmp_path / "mark")

    def add(number: int) -> None:
        path = tmp_path / str(number)
        path.write_bytes(bytes(size))
        files.append(path.open("r+b"))
        gate.add(
            number * size, size, files[-1].fileno(), bytes(path), bytes(tmp_path), None, Extent(size), files[-1]
        )  # fmt: skip

    def wait() -> None:
        found.append(gate.wait(size + 100, 1, 1))

    add(0)
    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: gate.flushed_offset == size)
    assert gate.failure is None
    # Of the second one it only hears now.
    assert not found
    add(1)
    thread.join()
    assert found == [_kernel.FLUSHED]
    assert gate.flushed_offset == size + 100
    gate.close(60_000)
    for file in files:
        file.close()


@pytest.mark.slow
def test_a_failure_at_any_moment_of_a_sync_stands(tmp_path: Path) -> None:
    """A sync that was reading back when the log was lost must not count its bytes as durable."""
    fields = RecordFields(topic=b"t", body=bytes(32 << 20), properties=b"")
    record = memoryview(encode_record(fields))
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, len(record))
    for moment in range(16):
        _, gate = gate_at(tmp_path / "mark")
        file = os.open(path, os.O_RDWR)
        try:
            gate.add(0, len(record), file, bytes(path), bytes(tmp_path), None, Extent(0), None)
            waiter = threading.Thread(target=gate.wait, args=(len(record), 1, 1))
            waiter.start()
            while gate.since_ns == 0 == gate.flushed_offset:
                pass
            for _ in range(5000 * moment):
                pass
            gate.fail(0)
            waiter.join()
            assert gate.close(60_000)
            assert gate.flushed_offset == 0
        finally:
            os.close(file)


# --- what it leaves behind


@pytest.mark.night
def test_many_stores_in_one_process_leave_nothing(tmp_path: Path) -> None:
    gc.collect()
    threads, files = sync_threads(), len(os.listdir("/proc/self/fd"))
    # Other tests may have left some behind.
    gates = {id(each) for each in gc.get_objects() if isinstance(each, SyncGate)}
    for round_ in range(3):
        stores = [
            penstock.open(tmp_path / f"{round_}{number}", flush="sync", write=write, environ={})
            for number, write in enumerate(itertools.islice(itertools.cycle(WRITERS), 8))
        ]
        for number in range(20):
            assert all(store.put("t", b"%d" % number, queue=0).is_durable for store in stores)
        eventually(lambda: len(sync_threads() - threads) == 8)
        for store in stores:
            store.close()
        # A thread says that it has ended a moment before the system has done with it.
        eventually(lambda: sync_threads() <= threads)
        del stores, store
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == files
        assert gates >= {id(each) for each in gc.get_objects() if isinstance(each, SyncGate)}


def test_the_worker_group_waits_for_the_sync_that_runs_and_tells_nothing() -> None:
    class Gate:
        since_ns = 2_500_000_000
        waited: ClassVar[list[tuple[int, int]]] = []

        def await_sync(self, began_ns: int, limit_ms: int = 0) -> bool:
            self.waited.append((began_ns, limit_ms))
            return began_ns != self.since_ns or len(self.waited) > 3

    gate: Any = Gate()
    thread = SyncThread(gate, 0.5)
    assert (thread.name, thread.since, thread.place()) == (
        "penstock-sync",
        2.5,
        "a sync of the log",
    )
    alive = []
    for act in (thread.request_stop, thread.stop, thread.join):
        act()
        alive.append(thread.is_alive)
    assert alive == [False, True, False]
    began = 2_500_000_000
    assert gate.waited == [(began, 500), (began, 0), (began, 60_000), (began, 60_000), (began, 0)]


def test_the_worker_group_does_not_wait_for_later_syncs() -> None:
    """Threads that put until the log is closed have a sync running at each moment; a close must not take that for a hang."""

    class Gate:
        since_ns = 7

        def await_sync(self, began_ns: int, limit_ms: int = 0) -> bool:
            ended = began_ns != self.since_ns
            self.since_ns += 1
            return ended or limit_ms > 0

    gate: Any = Gate()
    thread = SyncThread(gate, 0.5)
    thread.stop()
    assert not thread.is_alive
    thread.join()


_CHILD = """
import os, sys, time
from penstock._kernel import LATE, Appender, AppendLock, RecordEncoder, SyncGate
lock = AppendLock(1000, lambda: 0)
appender = Appender(RecordEncoder(bytes(8), crc_property=False, body_bytes_max=9), lock, print)
mark = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
"""
_FORKED = """
gate = SyncGate(appender, 2, 0, 0)
gate.start(0, mark)
child = os.fork()
if child == 0:
    os._exit(0 if gate.await_sync(1) is gate.close() is True else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
gate.close(60_000)
sys.exit(code)
"""
_WITHOUT_STANDARD_INPUT = """
os.close(0)
gate = SyncGate(appender, 2, 0, 0)
gate.start(0, mark)
gate.close(60_000)
os.fstat(mark)
"""
_ENDED_WITHIN_A_FLUSH = """
gate = SyncGate(appender, 2, 0, 0)
gate.start(0, mark)
gate.add_by(0, 8, lambda log_offset: time.sleep(1000))
assert gate.wait(8, 0, 0, 100) == LATE
"""


@pytest.mark.parametrize(
    "story",
    [_FORKED, _WITHOUT_STANDARD_INPUT, _ENDED_WITHIN_A_FLUSH],
    ids=["forked", "no input", "ended within a flush"],
)
def test_a_process_ends_whatever_its_gate_does_and_a_forked_child_has_none(
    story: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _CHILD + story, str(tmp_path / "mark")]
    subprocess.run(command, check=True, timeout=60)
