"""A plugin that hangs: the log says where, close has a limit, and the store is sound when it comes back."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.lanes import eventually

from penstock.contracts import RetentionPolicy, Vote
from penstock.contracts.dispatcher import DispatchBatch
from penstock.errors import StorageError, StoreLockedError
from penstock.store.store import Store
from penstock.testing import open_store
from penstock_flush.policies import AsyncFlush
from penstock_index.consume_queue import ConsumeQueueDispatcher

PATIENT: dict[str, Any] = {"plugins.slow_ms": 20, "plugins.close_limit_ms": 100}
QUICK: dict[str, Any] = {"plugins.slow_ms": 10}


def reopened(path: Path) -> Store:
    """Open a store once what holds its lock has ended."""

    def tried() -> Store | None:
        try:
            return open_store(path)
        except StoreLockedError:
            return None

    store = eventually(tried)
    assert store is not None
    return store


@pytest.mark.parametrize("what", ["dispatcher", "retention policy"])
def test_a_plugin_that_hangs_is_named_and_close_has_a_limit(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Close once waited for ever for a thread that a plugin kept."""
    gate, entered = threading.Event(), threading.Event()

    def hang() -> None:
        if not gate.is_set():
            entered.set()
            gate.wait(60)

    class Slow(ConsumeQueueDispatcher):
        def dispatch(self, batch: DispatchBatch) -> None:
            hang()
            super().dispatch(batch)

    class Stuck(RetentionPolicy):
        name = "age"

        def vote(self, *_: Any) -> Vote:
            hang()
            return Vote(0, "hung")

    caplog.set_level(logging.WARNING)
    strategies = [Slow] if what == "dispatcher" else [Stuck]
    store = open_store(tmp_path / "s", strategies=strategies, retention=["age"], **PATIENT)
    store.put("t", b"x", queue=0)
    assert entered.wait(30)
    assert store.put("t", b"y", queue=0).queue_offset == 1, "the log goes on without it"
    assert store.flush() > 0
    eventually(lambda: "has been in one step" in caplog.text)
    assert "test_hanging.py" in caplog.text or "threading.py" in caplog.text
    with pytest.raises(StorageError, match=r"background work did not end.*penstock-"):
        store.close()
    with pytest.raises(StoreLockedError):
        open_store(tmp_path / "s")  # what hangs may yet write
    gate.set()

    with reopened(tmp_path / "s") as again:
        assert again.recovery is not None
        assert again.recovery.state == "abnormal"
        assert [m.body for m in again.scan("t")] == [b"x", b"y"]
        assert not list(again.verify())


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize("call", ["__init__", "start"])
def test_the_lock_stays_while_a_thread_of_an_opening_that_failed_still_runs(
    call: str, is_interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs may yet write: the lock was released at once, and the next process's messages were overwritten; with
    Ctrl-C while the opening waited for it, the lock stayed for good."""
    gate, entered = threading.Event(), threading.Event()
    error = KeyboardInterrupt if is_interrupted else ValueError

    def interrupted(_: threading.Thread, __: float | None = None) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def step() -> None:
        entered.set()
        gate.wait(60)

    class Failing(AsyncFlush):
        """Begins background work and fails."""

        def _fail(self) -> None:
            self.context.spawn("penstock-work", step)
            assert entered.wait(30)
            if is_interrupted:
                monkeypatch.setattr(threading.Thread, "join", interrupted)
            raise ValueError("no")

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            if call == "__init__":
                self._fail()

        def start(self) -> None:
            self._fail()

    with pytest.raises(error):
        open_store(tmp_path / "s", strategies=[Failing], flush="async", **PATIENT)
    with pytest.raises(StoreLockedError):
        open_store(tmp_path / "s")
    gate.set()
    reopened(tmp_path / "s").close()


def test_a_step_that_takes_long_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    class Stuck(RetentionPolicy):
        name = "age"

        def vote(self, *_: Any) -> Vote:
            gate.wait(60)
            return Vote(0, "late")

    with open_store(tmp_path / "s", strategies=[Stuck], retention=["age"], **QUICK) as store:
        engine = store._engine
        assert engine is not None
        eventually(lambda: "penstock-retain has been in one step" in caplog.text)
        engine.worker_group.watch()
        engine.worker_group.watch()
        assert caplog.text.count("penstock-retain has been") == 1
        gate.set()
