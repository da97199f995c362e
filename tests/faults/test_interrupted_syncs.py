"""Interrupts, failures and forks at the places where a promise about the disk is made; each was found by a review."""

import contextlib
import errno
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.conftest import Listen, OpenStore
from tests.faults.children import run
from tests.faults.test_closing_handlers import before_each_write
from tests.hooked import hooked
from tests.lanes import eventually

import penstock
from penstock import Message, _kernel
from penstock.contracts import FlushPolicy
from penstock.durability.log_flusher import LogFlusher
from penstock.errors import BusyError, ForkedStoreError, MessageError, StoreFailedError
from penstock.files import Files
from penstock.files.file import File
from penstock.log.commit_log import LogTail
from penstock.retention.runner import Retention
from penstock.store.store import Store
from penstock.testing import FaultyFiles, ManualWorkers, open_store
from penstock_alloc.writers import FileChannel
from penstock_flush.policies import AsyncFlush, NoFlush, SyncFlush

WAIT_S = 30


@contextlib.contextmanager
def interrupted_in(code: Any, line: str | None = None) -> Any:
    """Raise `KeyboardInterrupt` once, at the beginning of a function or at a line of it."""
    is_done = [False]

    def raise_at(frame: FrameType, _event: str, _arg: object) -> Any:
        if frame.f_code is not code:
            return None
        if line is None or is_done[0]:
            if not is_done[0]:
                is_done[0] = True
                raise KeyboardInterrupt
            return None
        return at_line

    def at_line(frame: FrameType, _event: str, _arg: object) -> Any:
        text = Path(frame.f_code.co_filename).read_text().splitlines()[frame.f_lineno - 1]
        if not is_done[0] and line is not None and line in text:
            is_done[0] = True
            raise KeyboardInterrupt
        return at_line

    before = sys.gettrace()
    sys.settrace(raise_at)
    try:
        yield is_done
    finally:
        sys.settrace(before)


def in_time(job: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "it waits for ever"
    return thread


Added = list[tuple[Any, Any]]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """Return the gates and segments that flushers take in from now on."""
    found: Added = []
    whole = LogFlusher._add

    def add(flusher: LogFlusher, segment: Any) -> None:
        whole(flusher, segment)
        found.append((flusher.gate, segment))

    monkeypatch.setattr(LogFlusher, "_add", add)
    return found


@pytest.mark.parametrize(("where", "line"), [("_add", None), ("_add", "gate.add("), ("take_in", "self._seen_to = segment.end_offset")])  # fmt: skip
def test_a_segment_whose_taking_in_was_interrupted_is_synced(
    where: str, line: str | None, open_small: OpenStore, request: pytest.FixtureRequest
) -> None:
    """The next segments were synced, the flushed offset moved beyond this one, and puts were told "on disk"."""
    code = getattr(LogFlusher, where).__code__
    added: Added = request.getfixturevalue("added")
    with open_small(flush="sync", write="mmap", alloc="on-demand") as store:
        store.put("t", b"x" * 40_000, queue=0)
        with interrupted_in(code, line) as is_done, pytest.raises(KeyboardInterrupt):
            store.put("t", b"y" * 40_000, queue=0)
        assert is_done[0]
        for number in range(4):
            receipt = store.put("t", b"%d" % number + b"z" * 40_000, queue=0)
            assert receipt.is_durable
        in_time(store.flush)
        bases = sorted(int(path.name) for path in (store.path / "commitlog").iterdir())
        assert len(bases) == store.stats()["segments"]
        assert {segment.base_offset for _, segment in added} >= set(bases[1:])
        assert store.stats()["flushed_offset"] == store.stats()["log_end_offset"]


def test_the_gate_passes_over_no_part_of_the_log(
    tmp_path: Path, open_small: OpenStore, added: Added
) -> None:
    with open_small(flush="sync", write="mmap") as store:
        store.put("t", b"1", queue=0)
        gate, segment = added[0]
        add = functools.partial(
            gate.add, capacity=segment.capacity, descriptor=segment.descriptor,
            path=bytes(segment.path), folder=bytes(tmp_path), gathered=None, extent=segment.extent, owner=None,
        )  # fmt: skip
        add(segment.base_offset)  # one that it has: nothing happens
        with pytest.raises(OSError, match="Invalid argument"):
            add(segment.end_offset + segment.capacity)
        assert store.put("t", b"2", queue=0).is_durable


class FailingFile(File):
    failing: list[int] = []  # noqa: RUF012 - shared by all on purpose

    def sync(self) -> None:
        if "consumequeue" in str(self.path) and self.failing:
            number = self.failing.pop()
            raise OSError(number, os.strerror(number), str(self.path))
        super().sync()


class FailingFiles(Files):
    def open(self, path: Path, *, writable: bool = False) -> File:
        file = super().open(path, writable=writable)
        return FailingFile(file.path, file.detach())


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EFBIG, errno.EIO])
def test_what_a_sync_of_queues_says_is_never_tried_again(
    number: int, open_small: OpenStore
) -> None:
    """The system says it once: the next sync of the same bytes would succeed and lie."""
    workers = ManualWorkers()
    store = open_small(files=FailingFiles(), flush="async", spawn=workers)
    store.put("t", b"1", queue=0)
    store.flush()
    store.topics()
    FailingFile.failing[:] = [number]
    workers.run("penstock-mark")
    assert "a sync of queues" in str(store.stats()["failure"])
    with pytest.raises(StoreFailedError):
        store.put("t", b"2", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_child_that_python_did_not_fork_is_refused(flush: str, tmp_path: Path) -> None:
    """Its puts went over the parent's."""
    script = """
import ctypes, os, select, sys, penstock
store = penstock.open(sys.argv[1], environ={}, flush=sys.argv[2])
store.put("t", b"parent", queue=0)
child = ctypes.PyDLL(None).fork()
if child == 0:
    said = []
    for work in (
        lambda: store.put("t", b"child", queue=0), lambda: store.put("t", b"child", wait=False, queue=0),
        lambda: store.put_many([penstock.Message("t", b"child", queue=0)]), lambda: store.submit("t", b"child"),
        lambda: store.flush(), lambda: store.commit_offset("g", "t", 0, offset=1),
    ):
        try:
            said.append(repr(work()))
        except penstock.PenstockError as error:
            said.append(type(error).__name__)
    store.close()
    print(*said, flush=True)
    os._exit(0)
if not select.select([os.pidfd_open(child)], [], [], 20)[0]:
    os.kill(child, 9)
os.waitpid(child, 0)
store.put("t", b"again", queue=0)
print([m.body for m in store.scan("t")], flush=True)
store.close()
"""
    lines: list[str] = []
    for number in range(10):
        lines = run(script, tmp_path / f"s{number}", flush)
        # Python does not know of the child, which may wait for a thread of the parent before its first line.
        if len(lines) != 1:
            break
    assert lines == [" ".join([ForkedStoreError.__name__] * 6), "[b'parent', b'again']"]


Flushers = list[Any]


@pytest.fixture
def flushers() -> Flushers:
    return []


def opened(root: Path, flushers: Flushers, policy: type[FlushPolicy], **given: Any) -> Store:
    """Open a store with one of our policies, and note the flusher that it is given."""
    noting = hooked(policy, "__init__", lambda *given: flushers.append(given[2]))
    return open_store(root, strategies=[noting], flush=policy.name, **given)


@pytest.mark.parametrize("write", ["mmap", "file", "transient-pool"])
def test_a_waiter_hears_of_a_close_that_was_interrupted(
    write: str, tmp_path: Path, flushers: Flushers, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"write.transient-pool.lock_memory": False} if write == "transient-pool" else {}
    store = opened(tmp_path / "s", flushers, NoFlush, write=write, **given)
    store.put("t", b"1", queue=0)
    ends: list[object] = []
    flushers[0].add_waiter(1 << 40, lambda: ends.append(flushers[0].outcome(1 << 40)))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Retention, "stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert len(ends) == 1
    assert "closed before the log was synced" in str(ends[0])


def test_nobody_waits_for_a_sync_that_nobody_will_do(open_small: OpenStore, added: Added) -> None:
    store = open_small(flush="none", write="mmap")
    store.put("t", b"1", queue=0)
    store.flush()
    gate, _ = added[0]
    store.close()
    said: list[int] = []
    in_time(lambda: said.append(gate.wait(1 << 40, 0, 0)))
    assert said
    assert said[0] not in (_kernel.FLUSHED, _kernel.LATE)


def test_a_close_within_an_append_of_the_same_thread_is_refused(
    open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append went on behind the clean mark, over what the next process had written."""
    with open_small(flush="async", write="mmap") as store:
        closes: list[BaseException] = []

        def close() -> None:
            if not closes:
                try:
                    store.close()
                except BaseException as error:
                    closes.append(error)

        before_each_write(monkeypatch, close)
        bodies = [b"%d" % number + b"x" * 40_000 for number in range(3)]
        for body in bodies:
            store.put("t", body, queue=0)
        assert [type(error) for error in closes] == [BusyError]
        assert [m.body for m in store.scan("t")] == bodies


def test_a_plugin_may_close_a_store_that_has_failed(open_small: OpenStore, listen: Listen) -> None:
    closes: list[str] = []

    def on_failed(_reason: str) -> None:
        try:
            store.close()
        except StoreFailedError as error:
            closes.append(str(error))

    listen("penstock_store_failed", "reason", on_failed)
    files = FaultyFiles()
    given = {"write.transient-pool.lock_memory": False}
    store = open_small(flush="none", write="transient-pool", files=files, **given)
    store.put("t", b"1", queue=0)
    files.plan.fail("sync", path="commitlog")
    fails: list[BaseException] = []

    def flush() -> None:
        try:
            store.flush()
        except StoreFailedError as error:
            fails.append(error)

    in_time(flush)
    assert len(closes) == len(fails) == 1


def test_puts_that_waited_for_the_lock_are_refused_after_a_failure(
    tmp_path: Path, flushers: Flushers, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "s", flushers, AsyncFlush, write="file")
    store.put("t", b"1", queue=0)
    said: list[str] = []

    def tried(work: Callable[[], object]) -> None:
        try:
            said.append(repr(work()))
        except StoreFailedError as error:
            said.append(type(error).__name__)

    writes, may_end = threading.Event(), threading.Event()
    whole = FileChannel.write

    def write(channel: FileChannel, position: int, data: bytes, sizes: Sequence[int] = ()) -> None:
        writes.set()
        assert may_end.wait(WAIT_S)
        whole(channel, position, data, sizes)

    monkeypatch.setattr(FileChannel, "write", write)
    works = (
        lambda: store.put("t", b"2", queue=0), lambda: store.put("t", b"3", queue=0), lambda: store.put_many([Message("t", b"4", queue=0)]),
    )  # fmt: skip
    first, *others = (threading.Thread(target=tried, args=(work,)) for work in works)
    before = store.stats()["append_lock"]["waits"]
    first.start()
    assert writes.wait(WAIT_S)
    for thread in others:
        thread.start()
    eventually(lambda: store.stats()["append_lock"]["waits"] == before + len(others))
    flushers[0].fail("a sync of the log failed (EIO)")
    may_end.set()
    for thread in (first, *others):
        thread.join(WAIT_S)
    assert said[-2:] == ["StoreFailedError"] * 2
    assert [m.body for m in store.scan("t")] in ([b"1"], [b"1", b"2"])
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_wake_file_that_is_cut_short_ends_no_writer(tmp_path: Path) -> None:
    script = """
import os, sys, penstock
store = penstock.open(sys.argv[1], environ={})
store.put("t", b"1", queue=0)
os.truncate(sys.argv[1] + "/penstock/wake", 0)
for number in range(50):
    store.put("t", b"2", queue=0)
    store.topics()
    store._engine.wakes.wake(always=True)
store.close()
print("closed")
"""
    assert run(script, tmp_path / "s") == ["closed"]
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert store.put("t", b"3", queue=0).queue_offset == 51


@pytest.mark.parametrize("nested", ["put_many", "put"])
def test_an_append_within_an_append_leaves_the_lock_to_the_first(
    nested: str, open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal released the lock of the append that was interrupted, and another thread put over its records."""
    with open_small(flush="async") as store:
        works: dict[str, Callable[[], object]] = {
            "put_many": lambda: store.put_many([Message("t", b"nested", queue=0)]),
            "put": lambda: store.put("t", b"nested", queue=0),
        }
        whole = LogTail.write_pieces
        waited: list[threading.Thread] = []

        def write_pieces(tail: LogTail, pieces: Any, data: Any) -> None:
            if not waited:
                with pytest.raises(BusyError):
                    works[nested]()
                before = store.stats()["append_lock"]["waits"]
                waited.append(threading.Thread(target=store.put, args=("t", b"3")))
                waited[0].start()
                eventually(lambda: store.stats()["append_lock"]["waits"] > before)
            whole(tail, pieces, data)

        monkeypatch.setattr(LogTail, "write_pieces", write_pieces)
        store.put_many([Message("t", b"%d" % number, queue=0) for number in range(3)])
        waited[0].join(WAIT_S)
        assert [m.body for m in store.scan("t")] == [b"0", b"1", b"2", b"3"]
        assert not list(store.verify())


def test_nothing_is_on_disk_that_came_after_the_last_sync(
    tmp_path: Path, flushers: Flushers
) -> None:
    store = opened(tmp_path / "s", flushers, SyncFlush, write="mmap")
    store.put("t", b"1", queue=0)
    flushers[0].close()
    for work in (lambda: store.put("t", b"2", queue=0), store.flush):
        with pytest.raises(StoreFailedError, match="closed before the log was synced"):
            work()
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_refused_batch_is_let_go_at_once(open_small: OpenStore) -> None:
    with open_small() as store:
        gc.collect()
        gc.disable()
        try:
            before = sum(isinstance(each, _kernel.Batch) for each in gc.get_objects())
            for _ in range(3):
                with pytest.raises(MessageError, match="body must be bytes"):
                    store.put_many([Message("t", b"x" * 1000, queue=0), Message("t", 5, queue=0)])  # type: ignore[arg-type] # on purpose
            assert sum(isinstance(each, _kernel.Batch) for each in gc.get_objects()) == before
        finally:
            gc.enable()
