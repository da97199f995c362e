"""Interrupts, failures and forks at the places where a promise about the disk is made; each was found by a review."""

import contextlib
import errno
import functools
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.faults.children import ROOT, environment

import penstock
from penstock import Message, _kernel
from penstock.durability.log_flusher import LogFlusher
from penstock.errors import BusyError, ForkedStoreError, MessageError, StoreFailedError
from penstock.files import Files
from penstock.files.file import File

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


@pytest.mark.parametrize("line", [None, "gate.add(", "self._seen_to = segment.end_offset"])
def test_a_segment_whose_taking_in_was_interrupted_is_synced(
    line: str | None, open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next segments were synced, the flushed offset moved beyond this one, and puts were told "on disk"."""
    with open_small(flush="sync", write="mmap") as store:
        engine = store._engine
        assert engine is not None
        added: list[int] = []
        whole = LogFlusher._add

        def add(flusher: LogFlusher, gate: Any, segment: Any) -> None:
            whole(flusher, gate, segment)
            added.append(segment.base_offset)

        monkeypatch.setattr(LogFlusher, "_add", add)
        store.put("t", b"x" * 40_000)
        where = LogFlusher.take_in if line is not None and "_seen_to" in line else whole
        with interrupted_in(where.__code__, line) as is_done, pytest.raises(KeyboardInterrupt):
            store.put("t", b"y" * 40_000)
        assert is_done[0]
        for number in range(4):
            receipt = store.put("t", b"%d" % number + b"z" * 40_000)
            assert receipt.is_durable
        in_time(store.flush)
        assert set(added) >= {each.base_offset for each in engine.log.log.segments[1:]}
        assert engine.flusher.flushed_offset == engine.log.end_offset


def test_the_gate_passes_over_no_part_of_the_log(tmp_path: Path, open_small: OpenStore) -> None:
    with open_small(flush="sync", write="mmap") as store:
        engine = store._engine
        assert engine is not None
        store.put("t", b"1")
        gate = engine.flusher._gate
        assert gate is not None
        segment = engine.log.log.segments[0]
        assert segment.channel is not None
        assert segment.descriptor is not None
        add = functools.partial(
            gate.add, capacity=segment.capacity, descriptor=segment.descriptor, view=segment.channel.view,
            path=bytes(segment.path), folder=bytes(tmp_path), gathered=None, extent=segment.extent, owner=None,
        )  # fmt: skip
        add(segment.base_offset)  # one that it has: nothing happens
        with pytest.raises(OSError, match="Invalid argument"):
            add(segment.end_offset + segment.capacity)
        assert store.put("t", b"2").is_durable


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
    store = open_small(files=FailingFiles(), flush="async")
    store.put("t", b"1")
    store.flush()
    store.topics()
    FailingFile.failing[:] = [number]
    engine = store._engine
    assert engine is not None
    with pytest.raises(StoreFailedError, match="a sync of queues"):
        engine.checkpoints.write()
    with pytest.raises(StoreFailedError):
        store.put("t", b"2")
    with pytest.raises(StoreFailedError):
        store.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_child_that_python_did_not_fork_is_refused(flush: str, tmp_path: Path) -> None:
    """Its puts went over the parent's."""
    script = """
import ctypes, os, sys, penstock
store = penstock.open(sys.argv[1], environ={}, flush=sys.argv[2])
store.put("t", b"parent")
child = ctypes.PyDLL(None).fork()
if child == 0:
    said = []
    for work in (
        lambda: store.put("t", b"child"), lambda: store.put("t", b"child", wait=False),
        lambda: store.put_many([penstock.Message("t", b"child")]), lambda: store.submit("t", b"child"),
        lambda: store.flush(), lambda: store.commit_offset("g", "t", offset=1),
    ):
        try:
            said.append(repr(work()))
        except penstock.PenstockError as error:
            said.append(type(error).__name__)
    store.close()
    print(*said, flush=True)
    os._exit(0)
os.waitpid(child, 0)
store.put("t", b"again")
print([m.body for m in store.scan("t")], flush=True)
store.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s"), flush], check=False, capture_output=True,
        text=True, cwd=ROOT, env=environment(), timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        " ".join([ForkedStoreError.__name__] * 6),
        "[b'parent', b'again']",
    ], done.stderr


@pytest.mark.parametrize("write", ["mmap", "file", "transient-pool"])
def test_a_waiter_hears_of_a_close_that_was_interrupted(
    write: str, open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"write.transient-pool.lock_memory": False} if write == "transient-pool" else {}
    store = open_small(write=write, flush="none", **given)
    engine = store._engine
    assert engine is not None
    store.put("t", b"1")
    ends = []
    engine.flusher.add_waiter(1 << 40, lambda: ends.append(engine.flusher.outcome(1 << 40)))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.retention, "stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert len(ends) == 1
    assert "closed before the log was synced" in str(ends[0])


def test_nobody_waits_for_a_sync_that_nobody_will_do(open_small: OpenStore) -> None:
    store = open_small(flush="none", write="mmap")
    engine = store._engine
    assert engine is not None
    store.put("t", b"1")
    gate = engine.flusher._gate
    assert gate is not None
    store.close()
    said: list[int] = []
    in_time(lambda: said.append(gate.wait(1 << 40, 0, 0, checks=False)))
    assert said
    assert said[0] not in (_kernel.FLUSHED, _kernel.LATE)


def test_a_close_within_an_append_of_the_same_thread_is_refused(
    open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append went on behind the clean mark, over what the next process had written."""
    from penstock_alloc.mmap_writer import MmapChannel  # noqa: PLC0415 - a plugin, beside its use

    with open_small(flush="async", write="mmap") as store:
        closes: list[BaseException] = []
        whole = MmapChannel.write

        def write(channel: MmapChannel, position: int, data: bytes) -> None:
            if not closes:
                try:
                    store.close()
                except BaseException as error:
                    closes.append(error)
            whole(channel, position, data)

        monkeypatch.setattr(MmapChannel, "write", write)
        bodies = [b"%d" % number + b"x" * 40_000 for number in range(3)]
        for body in bodies:
            store.put("t", body)
        assert [type(error) for error in closes] == [BusyError]
        assert [m.body for m in store.scan("t")] == bodies


def test_a_plugin_may_close_a_store_that_has_failed(
    open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_small(
        flush="none", write="transient-pool", **{"write.transient-pool.lock_memory": False}
    )
    engine = store._engine
    assert engine is not None
    store.put("t", b"1")
    closes: list[str] = []

    def on_failed(_failure: StoreFailedError) -> None:
        try:
            store.close()
        except StoreFailedError as error:
            closes.append(str(error))

    engine.flusher.on_failed = on_failed

    def fail(_flushed: int) -> int:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(engine.log.log, "flush", fail)
    fails: list[BaseException] = []

    def flush() -> None:
        try:
            store.flush()
        except StoreFailedError as error:
            fails.append(error)

    in_time(flush)
    assert len(closes) == len(fails) == 1


def test_puts_that_waited_for_the_lock_are_refused_after_a_failure(open_small: OpenStore) -> None:
    store = open_small(flush="async")
    store.put("t", b"1")
    engine = store._engine
    assert engine is not None
    said: list[str] = []

    def tried(work: Callable[[], object]) -> None:
        try:
            said.append(repr(work()))
        except StoreFailedError as error:
            said.append(type(error).__name__)

    works = (lambda: store.put("t", b"2"), lambda: store.put_many([Message("t", b"3")]))
    end = engine.log.end_offset
    engine.log.lock.acquire()
    threads = [threading.Thread(target=tried, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    while engine.log.lock.waits < len(works):
        pass
    engine.flusher.fail("a sync of the log failed (EIO)")
    engine.log.lock.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert said == ["StoreFailedError"] * 2
    assert engine.log.end_offset == end
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_wake_file_that_is_cut_short_ends_no_writer(tmp_path: Path) -> None:
    script = """
import os, sys, penstock
store = penstock.open(sys.argv[1], environ={})
store.put("t", b"1")
os.truncate(sys.argv[1] + "/penstock/wake", 0)
for number in range(50):
    store.put("t", b"2")
    store.topics()
    store._engine.wakes.wake(always=True)
store.close()
print("closed")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], check=False, capture_output=True,
        text=True, cwd=ROOT, env=environment(), timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert store.put("t", b"3").queue_offset == 51


@pytest.mark.parametrize("nested", ["put_many", "put"])
def test_an_append_within_an_append_leaves_the_lock_to_the_first(
    nested: str, open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal released the lock of the append that was interrupted, and another thread put over its records."""
    with open_small(flush="async") as store:
        engine = store._engine
        assert engine is not None
        works: dict[str, Callable[[], object]] = {
            "put_many": lambda: store.put_many([Message("t", b"nested")]),
            "put": lambda: store.put("t", b"nested"),
        }
        whole = engine.log.tail.write_pieces
        owned: list[bool] = []

        def write_pieces(pieces: Any, data: Any) -> None:
            with pytest.raises(BusyError):
                works[nested]()
            owned.append(engine.log.lock.is_owned())
            whole(pieces, data)

        monkeypatch.setattr(engine.log.tail, "write_pieces", write_pieces)
        store.put_many([Message("t", b"%d" % number) for number in range(3)])
        assert owned == [True]
        monkeypatch.undo()
        store.put("t", b"3")
        assert [m.body for m in store.scan("t")] == [b"0", b"1", b"2", b"3"]
        assert not list(store.verify())


def test_nothing_is_on_disk_that_came_after_the_last_sync(open_small: OpenStore) -> None:
    store = open_small(flush="sync", write="mmap")
    engine = store._engine
    assert engine is not None
    store.put("t", b"1")
    engine.flusher.close()
    for work in (lambda: store.put("t", b"2"), store.flush):
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
                    store.put_many([Message("t", b"x" * 1000), Message("t", 5)])  # type: ignore[arg-type] # on purpose
            assert sum(isinstance(each, _kernel.Batch) for each in gc.get_objects()) == before
        finally:
            gc.enable()
