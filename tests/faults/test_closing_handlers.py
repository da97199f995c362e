"""`store.close()` in a signal handler, wherever the signal comes: it does not hang, and the store is closed at last."""

import contextlib
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.conftest import OpenStore
from tests.faults.children import run
from tests.faults.interrupts import everywhere
from tests.faults.test_interrupted_consumers import poll, poll_and, watched
from tests.lanes import rounds

import penstock
from penstock import Message, StorageError
from penstock.errors import BusyError, StoreFailedError
from penstock.retention.runner import Retention
from penstock.store.store import Store
from penstock.testing import FaultyFiles, open_store
from penstock_alloc.writers import MmapChannel
from penstock_messaging.extension import MessagingExtension

COUNT = 6
# Every so many places of a job; at night at many more.
STEP = rounds(gate=307, night=11)
# These have thousands.
LONG = {"close": 8, "consumer": 3}
Job = Callable[[Store, Any], object]


def consuming(job: Callable[[Any], object]) -> Job:
    return lambda _, consumer: job(consumer)


def iterate(_: Store, consumer: Any) -> None:
    for message in consumer:
        message.ack()
        if message.body == b"2":
            break


def flush(store: Store, _: Any) -> None:
    store.put("orders", b"x", wait=False)
    store.flush()


def transact(store: Store, consumer: Any) -> None:
    with store.transaction() as transaction:
        transaction.put("others", b"x")
        transaction.ack(consumer.poll(2, 0))


JOBS: dict[str, Job] = {
    "poll": consuming(poll),
    "ack": consuming(poll_and("ack")),
    "unsynced": consuming(poll_and("ack", sync=False)),
    "nack": consuming(poll_and("nack")),
    "iterate": iterate,
    "put": lambda store, _: store.put("orders", b"x"),
    "batch": lambda store, _: store.put_many([Message("orders", b"x")] * 2),
    "flush": flush,
    "delay": lambda store, _: store.put("orders", b"x", delay=60),
    "commit": lambda store, _: store.commit_offset("h", "orders", 0, offset=2),
    "transaction": transact,
    "consumer": lambda store, _: store.consumer("h", "orders"),
    "delete": lambda store, _: store.delete_topic("orders"),
    "close": lambda store, _: store.close(),
}


def walk(path: Path, name: str) -> None:
    """Let SIGTERM come at places of a job whose handler closes the store and ends the program."""
    terminate = partial(signal.raise_signal, signal.SIGTERM)
    for interrupt in everywhere(STEP * LONG.get(name, 1), error=SystemExit, act=terminate):
        root = path / f"{interrupt.number}"
        store = penstock.open(root, environ={})
        for each in range(COUNT):
            store.put("orders", b"%d" % each, queue=0, wait=False)
        consumer = store.consumer("g", ["orders"])
        answered = {call: watched(consumer, call) for call in ("ack", "nack")}

        def stop(*_: object, store: Store = store) -> None:
            store.close()
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        # A removal that is interrupted fails the store, which its close tells.
        fails = suppress(StoreFailedError) if name == "delete" else nullcontext()
        with fails, store:
            interrupt.during(partial(JOBS[name], store, consumer))
        with penstock.open(root, environ={}) as again:
            assert again.recovery is not None
            # A close, or a removal, that the end of the program interrupts is over, as after Ctrl-C: the next opening
            # recovers.
            assert again.recovery.state == "clean" or name in ("close", "delete"), interrupt.place
            with again.consumer("g", ["orders"]) as other:
                seen = {m.body for m in other.poll(COUNT, 0)} - {b"x"}
            seen |= {b"%d" % each for group in answered.values() for each in group}
            # What a transaction has acknowledged is asked for nowhere.
            assert len(seen) == COUNT or name in ("transaction", "delete"), interrupt.place


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_handler_that_closes_the_store_hangs_nowhere(tmp_path: Path, job: str) -> None:
    """A close that needed a lock of the interrupted call waited for ever, or for each thread that needed it."""
    run(
        "import sys, pathlib\nfrom tests.faults.test_closing_handlers import walk\n"
        "walk(pathlib.Path(sys.argv[1]), sys.argv[2])", tmp_path, job,
    )  # fmt: skip


APPENDS = """
import os, signal, sys, penstock
from penstock_alloc.writers import MmapChannel

store = penstock.open(sys.argv[1], environ={}, write="mmap")
store.put("t", b"1", queue=0)
whole = MmapChannel.write
"""
WITHIN_APPEND = """
def write(*given):
    MmapChannel.write = whole
    signal.raise_signal(signal.SIGTERM)
    whole(*given)

def stop(*_):
    store.close()
    print("asked")
    sys.exit(0)

MmapChannel.write = write
signal.signal(signal.SIGTERM, stop)
store.put("t", b"x" * 40_000, queue=0)
"""


def test_the_end_of_the_process_waits_for_a_close_that_a_handler_has_begun(tmp_path: Path) -> None:
    assert run(APPENDS + WITHIN_APPEND, tmp_path / "s") == ["asked"]
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"
        assert next(iter(store.scan("t"))).body == b"1"


def test_a_store_may_be_closed_by_atexit(tmp_path: Path) -> None:
    """Python calls it with nothing else on the stack."""
    run(
        "import atexit, sys, penstock\nstore = penstock.open(sys.argv[1], environ={})\n"
        "atexit.register(store.close)\nstore.put('t', b'1')", tmp_path / "s",
    )  # fmt: skip
    with penstock.open(tmp_path / "s", environ={}) as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"


@contextlib.contextmanager
def closers() -> Iterator[list[int]]:
    """Give the threads in which stores are closed."""
    found: list[int] = []
    whole = Retention.stop

    def stop(retention: Retention, limit_s: float) -> None:
        found.append(threading.get_ident())
        whole(retention, limit_s)

    with patch.object(Retention, "stop", stop):
        yield found


def within_a_call(store: Store, act: Callable[[], object]) -> None:
    """Let a signal handler do something in the middle of a call of the store."""

    def messages() -> Iterator[Message]:
        in_handler(act)
        yield Message("t", b"x")

    store.put_many(messages())


def before_each_write(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something in the middle of each append that is longer than a draft."""
    whole = MmapChannel.write

    def write(channel: MmapChannel, *given: Any) -> None:
        act()
        whole(channel, *given)

    monkeypatch.setattr(MmapChannel, "write", write)


def in_handler(act: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_close_outside_every_call_of_the_store_is_done_at_once(tmp_path: Path) -> None:
    """By a `with`, by what holds the store as `_store`, by a subclass, and in a call of another one."""

    class Service:
        def __init__(self, store: Store) -> None:
            self._store = store

        def end(self) -> None:
            with self._store:
                pass

    class Wrapped(Store):
        def close(self) -> None:
            super().close()

        def end(self) -> None:
            self.close()

    with closers() as found, open_store(tmp_path / "first") as first:
        for way in ("close", "end"):
            second = open_store(tmp_path / "second")
            second.__class__ = Wrapped
            getattr(second, way)()
        with ExitStack() as stack:
            stack.enter_context(open_store(tmp_path / "second"))
        Service(open_store(tmp_path / "second")).end()
        second = open_store(tmp_path / "second")
        within_a_call(first, second.close)
        within_a_call(first, open_store(tmp_path / "second").lowlevel.close)
        assert found == [threading.get_ident()] * 6


def test_a_close_in_the_middle_of_a_call_is_done_by_a_thread(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    with closers() as found, pytest.raises(penstock.StoreClosedError):
        within_a_call(store, store.close)
    store.close()
    assert len(found) == 1
    assert found != [threading.get_ident()]
    open_store(tmp_path / "s").close()


def close_without_a_thread(store: Store, error: BaseException) -> None:
    """Close within a call, where the start of a thread raises."""

    def close() -> None:
        with patch.object(threading.Thread, "start", side_effect=error):
            store.close()

    within_a_call(store, close)


def test_where_no_thread_can_be_started_the_handler_closes_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    with closers() as found, pytest.raises(penstock.StoreClosedError):
        close_without_a_thread(store, RuntimeError("can't start new thread"))
    assert found == [threading.get_ident()]


def test_a_second_signal_before_the_thread_runs_does_no_harm(tmp_path: Path) -> None:
    """Nobody closed the store then, and the next close waited for that for ever."""
    store = open_store(tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        close_without_a_thread(store, KeyboardInterrupt())
    with closers() as found:
        store.close()
    assert found == [threading.get_ident()]


def test_a_close_keeps_nothing_of_its_callers(tmp_path: Path) -> None:
    """To look at the variables of a frame kept what they had named, such as a store that was dropped."""
    first, second = open_store(tmp_path / "first"), open_store(tmp_path / "second")
    gone = weakref.ref(first)
    second.close()
    first.close()
    del first
    assert gone() is None


def test_a_hook_of_the_interrupted_call_may_close_the_store_again(
    open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the thread, which waits for the call."""
    store = open_small(flush="async", write="mmap")

    def close_twice() -> None:
        in_handler(store.close)
        with contextlib.suppress(BusyError):
            store.close()

    before_each_write(monkeypatch, close_twice)
    store.put("t", b"x" * 40_000, queue=0)
    store.close()
    with open_small(flush="async", write="mmap") as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"


def test_the_next_close_raises_once_why_the_store_could_not_be_closed(
    open_small: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles()
    store = open_small(flush="async", write="mmap", files=files)

    def close() -> None:
        files.plan.fail("sync", path="commitlog")
        in_handler(store.close)

    before_each_write(monkeypatch, close)
    store.put("t", b"x" * 40_000, queue=0)
    with pytest.raises(StorageError):
        store.close()
    store.close()


FAILED = """
import signal, sys, pathlib
from penstock import Message
from penstock.testing import FaultyFiles, open_store

files = FaultyFiles()
store = open_store(pathlib.Path(sys.argv[1]), files=files)

def stop(*_):
    files.plan.fail("sync", path="commitlog")
    store.close()
    sys.exit(0)

def messages():
    store.put("t", b"1", wait=False)
    signal.raise_signal(signal.SIGTERM)
    yield Message("t", b"x")

signal.signal(signal.SIGTERM, stop)
if sys.argv[2:]:
    with store:
        store.put_many(messages())
store.put_many(messages())
"""


@pytest.mark.parametrize("way", [[], ["with"]])
def test_at_the_end_of_the_process_it_is_told_why_the_store_could_not_be_closed(
    tmp_path: Path, way: list[str]
) -> None:
    """The thread had failed within the handler's second, and nobody asked."""
    code = [sys.executable, "-c", FAILED, str(tmp_path / "s"), *way]
    done = subprocess.run(code, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert "in _close_at_exit" in done.stderr
    assert "StoreFailedError" in done.stderr


def test_a_close_that_failed_in_a_thread_is_done_by_the_next_one(tmp_path: Path) -> None:
    """Its error came in place of the close, and the store stayed open."""
    store = open_store(tmp_path / "s")
    with (
        patch.object(MessagingExtension, "detach", side_effect=RuntimeError),
        contextlib.suppress(penstock.StoreClosedError),
    ):
        within_a_call(store, store.close)
    store.close()
    open_store(tmp_path / "s").close()


FORKED = """
def write(*given):
    MmapChannel.write = whole
    signal.raise_signal(signal.SIGTERM)
    if os.fork() == 0:
        signal.raise_signal(signal.SIGTERM)
        sys.exit(7)
    whole(*given)

signal.signal(signal.SIGTERM, lambda *_: store.close())
MmapChannel.write = write
store.put("t", b"x" * 40_000, queue=0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_child_does_not_wait_for_what_closes_the_store_of_its_parent(tmp_path: Path) -> None:
    assert run(APPENDS + FORKED, tmp_path / "s") == ["7"]
