"""Strategies that raise, or answer nonsense, in each of their callbacks: what the store promised holds."""

import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Listen
from tests.lanes import eventually

from penstock import Message, StoreFailedError
from penstock.contracts import Extension, FlushPolicy, Strategy, Vote
from penstock.contracts.dispatcher import DispatchBatch
from penstock.contracts.extension import OpenStore
from penstock.errors import PluginError
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_alloc.allocators import OnDemandAllocator
from penstock_alloc.writers import MmapWriter
from penstock_flush.policies import AsyncFlush, SyncFlush
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher
from penstock_retention.policies import AgeRetention

CALLBACKS = [
    *((MmapWriter, name) for name in ("__init__", "start", "open", "close")),
    *((OnDemandAllocator, name) for name in ("__init__", "expect", "obtain", "sealed", "discard", "close")),
    *((cls, name) for cls in (AsyncFlush, SyncFlush) for name in ("__init__", "start", "after_append", "request", "close")),
    *((ConsumeQueueDispatcher, name) for name in (
        "__init__", "load", "dispatch", "flush", "trim", "close", "progress", "queues", "min_offset",
        "max_offset", "entries", "resume_at", "end_log_offset", "stats")),
    *((HashIndexDispatcher, name) for name in (
        "__init__", "load", "dispatch", "flush", "trim", "close", "progress", "candidates", "stats")),
    *((AgeRetention, name) for name in ("__init__", "vote")),
]  # fmt: skip
NONSENSE = {"none": None, "text": "nonsense", "negative": -7, "huge": 1 << 70, "object": object()}


class PluginBugError(Exception):
    """What a plugin with a mistake raises."""


def broken(cls: type[Strategy], name: str, how: str) -> type[Strategy]:
    """Return the strategy with one callback that misbehaves; the real one has run before it does, or not."""

    def raising(self: Any, *args: Any, **more: Any) -> Any:
        raise PluginBugError(f"{cls.name}.{name}")

    def answering(self: Any, *args: Any, **more: Any) -> Any:
        if name != "progress":
            getattr(cls, name)(self, *args, **more)
        return NONSENSE[how]

    does: Any = raising if how == "raises" else answering
    return type(cls.__name__, (cls,), {name: property(does) if name == "progress" else does})


def story(store: Store) -> list[bytes]:
    """Put over several segments, read, look things up, retain; returns what was made durable."""
    bodies = [b"%d:" % number + b"x" * 700 for number in range(40)]
    for number, body in enumerate(bodies):
        store.put("t", body, queue=0, keys=[f"k{number}"])
    store.flush()
    store.read("t", 0, 0, 10)
    store.find("k3", "t")
    store.retain()
    store.stats()
    return bodies


CASES = [
    (cls, name, how)
    for cls, name in CALLBACKS
    for how in ("raises", *NONSENSE)
    if how == "raises" or name != "__init__"
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("cls", "name", "how"), CASES, ids=lambda v: v if isinstance(v, str) else v.name)  # fmt: skip
def test_a_plugin_with_a_mistake_costs_nothing_that_was_promised(
    cls: type[Strategy], name: str, how: str, tmp_path: Path
) -> None:
    """A queue index that said -7 was believed, and the queue's messages got offsets that nobody can read."""
    settings: dict[str, Any] = {"plugins.close_limit_ms": 500}
    if cls is SyncFlush:
        settings |= {"flush": "sync", "flush.sync.timeout_ms": 300}
    path = tmp_path / "s"
    with open_store(path, **settings) as store:
        store.put("t", b"first", queue=0)
    promised = [b"first"]
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
        store = open_store(path, strategies=[broken(cls, name, how)], **settings)
        stack.callback(store.close)
        promised += story(store)
    with open_store(path, **settings) as again:
        found = [message.body for message in again.scan("t")]
        assert found[: len(promised)] == promised
        assert not list(again.verify())


def test_an_offset_from_a_plugin_that_cannot_be_is_named(tmp_path: Path) -> None:
    wrong = broken(ConsumeQueueDispatcher, "max_offset", "negative")
    with (
        open_store(tmp_path / "s", strategies=[wrong]) as store,
        pytest.raises(PluginError, match="returned -7 as the next offset"),
    ):
        store.put("t", b"x", queue=0)


def threads() -> set[threading.Thread]:
    """Return the background threads of this process's stores."""
    return {each for each in threading.enumerate() if each.name.startswith("penstock-")}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_hook_that_ends_the_program_leaves_a_store_that_is_closed(
    error: type[BaseException], tmp_path: Path, listen: Listen
) -> None:
    """The lock was released, and the store's threads went on: they overwrote what the next process flushed."""
    errors, before = [error()], threads()

    def end(_: str) -> None:
        while errors:
            raise errors.pop()

    listen("penstock_store_opened", "root", end)
    with pytest.raises(error):
        open_store(tmp_path / "s")
    assert threads() == before
    with open_store(tmp_path / "s") as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"


def test_an_extension_that_can_neither_attach_nor_detach_leaves_a_store_that_is_closed(
    tmp_path: Path,
) -> None:
    class Unreachable(Extension):
        """Has a service that is not there."""

        name = "unreachable"
        client: Any

        def attach(self, store: OpenStore) -> None:
            raise ConnectionRefusedError("the service is not there")

        def detach(self) -> None:
            self.client.close()

    before = threads()
    with pytest.raises(ConnectionRefusedError, match="not there"):
        open_store(tmp_path / "s", strategies=[Unreachable], extensions=["unreachable"])
    assert threads() == before
    with open_store(tmp_path / "s") as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"


def transact(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.put("t", b"x", queue=0)


PUTS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("t", b"x", queue=0),
    "put without waiting": lambda store: store.put("t", b"x", queue=0, wait=False),
    "put_many": lambda store: store.put_many([Message("t", b"x", queue=0)]),
    "submit": lambda store: store.submit("t", b"x", queue=0).result(30),
    "transaction": transact,
}


@pytest.mark.parametrize(("cls", "call", "way"), [
    *((AsyncFlush, "after_append", way) for way in PUTS),
    (AsyncFlush, "request", "submit"),
    (SyncFlush, "request", "put without waiting"),
], ids=lambda v: v if isinstance(v, str) else v.name)  # fmt: skip
def test_a_flush_policy_that_fails_after_an_append_stops_the_store_and_is_named(
    cls: type[FlushPolicy], call: str, way: str, tmp_path: Path
) -> None:
    """The caller got the policy's own error for a message that was stored, and put it again."""
    store = open_store(
        tmp_path / "s", strategies=[broken(cls, call, "raises")], flush=cls.name, spawn=ManualWorkers()
    )  # fmt: skip
    with pytest.raises(StoreFailedError, match=f"flush policy '{cls.name}' failed") as caught:
        PUTS[way](store)
    assert isinstance(caught.value.__cause__, PluginBugError)
    with pytest.raises(StoreFailedError):
        store.put("t", b"again", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()
    with open_store(tmp_path / "s") as again:
        assert [message.body for message in again.scan("t")] == [b"x"]


@pytest.mark.parametrize("event", ["penstock_segment_sealed", "penstock_segment_expired"])
def test_a_hook_that_ends_the_thread_that_calls_it_is_logged_and_ends_nothing(
    event: str, tmp_path: Path, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    """`sys.exit` in a hook ended the thread that publishes what readers see, and said nothing."""
    listen(event, "path", sys.exit)
    with open_store(tmp_path / "s", flush="none") as store:
        for number in range(6):
            store.put("t", b"%d" % number + b"x" * 30_000, queue=0)
        thread = threading.Thread(target=store.discard_before, kwargs={"log_offset": 1 << 16})
        thread.start()
        thread.join()
        eventually(lambda: f"failed in {event}" in caplog.text)
        store.put("t", b"6", queue=0)
        store.flush()
        with open_store(tmp_path / "s", read_only=True) as reader:
            eventually(lambda: reader.max_offset("t", 0) == 7)


def test_ctrl_c_and_sys_exit_in_a_hook_reach_the_program_in_its_main_thread(
    tmp_path: Path, listen: Listen
) -> None:
    listen("penstock_segment_expired", "path", sys.exit)
    with open_store(tmp_path / "s", spawn=ManualWorkers()) as store:
        for _ in range(4):
            store.put("t", b"x" * 30_000, queue=0)
        with pytest.raises(SystemExit):
            store.discard_before(log_offset=1 << 16)


def test_a_dispatcher_that_ends_its_thread_stops_the_store(tmp_path: Path) -> None:
    class Ending(HashIndexDispatcher):
        """Calls `sys.exit`."""

        def dispatch(self, batch: DispatchBatch) -> None:
            sys.exit(3)

    store = open_store(tmp_path / "s", strategies=[Ending])

    def refusal() -> str:
        try:
            store.put("t", b"x", queue=0, keys=["k"])
        except StoreFailedError as error:
            return error.reason
        return ""

    assert "penstock-follow failed: SystemExit(3)" in eventually(refusal)
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_retention_policy_that_ends_its_thread_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Ending(AgeRetention):
        """Calls `sys.exit`."""

        def vote(self, *_: Any) -> Vote:
            sys.exit(3)

    with open_store(tmp_path / "s", strategies=[Ending], retention=["age"]) as store:
        eventually(lambda: "the retention run failed" in caplog.text)
        store.put("t", b"x", queue=0)
