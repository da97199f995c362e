"""A store with a replicator: what the replicator is told, what puts wait for, and what their receipts say."""

import json
import logging
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.replicators import ScriptedReplicator

import penstock
from penstock.aio.store import AsyncStore
from penstock.contracts import CopyOutcome, CopyState
from penstock.errors import ConfigError, StoreFailedError, UnknownStrategyError
from penstock.message import Durability, Message, PutStatus, Receipt
from penstock.store.copying import settled
from penstock.store.store import Store
from penstock.testing import FaultyFiles, InlineWorkers, ManualWorkers, messages, open_store

OK, SLOW, NONE = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE


def opened(path: Path, **settings: Any) -> Store:
    """Return a store with a scripted replicator; its options are given without their prefix."""
    options = {
        f"replicate.scripted.{key}": settings.pop(key)
        for key in ("waits", "outcome", "timeout_ms")
        if key in settings
    }
    given: dict[str, Any] = {"replicate": "scripted", **options, **settings}
    return open_store(path / "s", strategies=[ScriptedReplicator], **given)


def made() -> ScriptedReplicator:
    return ScriptedReplicator.made


# --- what receipts say


@pytest.mark.parametrize(
    ("outcome", "status", "here", "not_here"),
    [
        (CopyOutcome.ON_DISK, OK, Durability.REPLICATED, Durability.ON_DISK_THERE),
        (CopyOutcome.RECEIVED, OK, Durability.ON_DISK, Durability.ACCEPTED),
        (CopyOutcome.LATE, SLOW, Durability.ON_DISK, Durability.UNKNOWN),
        (CopyOutcome.NOT_AVAILABLE, NONE, Durability.ON_DISK, Durability.ACCEPTED),
    ],
)
def test_a_receipt_says_what_is_known(
    outcome: CopyOutcome, status: PutStatus, here: Durability, not_here: Durability, tmp_path: Path
) -> None:
    assert settled(outcome, is_on_disk=True) == (status, here)
    assert settled(outcome, is_on_disk=False) == (status, not_here)
    for flush, durability in (("sync", here), ("none", not_here)):
        with opened(tmp_path / flush, flush=flush, outcome=str(outcome)) as store:
            receipt = store.put("t", b"x")
            assert (receipt.status, receipt.durability) == (status, durability)
            # The bytes could be copied when they were asked for.
            assert made().asked[-1] == receipt.log_offset + receipt.size <= made().told[-1]


def ways_in(store: Store) -> list[list[Receipt]]:
    """Put in every way that waits; return the receipts."""
    found = [[store.put("t", b"x")], [*store.put_many([Message("t", b"x"), Message("t", b"y")])]]
    found.append([*store.put_many([Message("t", b"x")] * 3, atomic=True)])
    with store.transaction() as tx:
        tx.put("t", b"x")
        tx.put("t", b"y")
    found.append([*tx.receipts])
    with store.prepare("t", b"x", group="g") as prepared:
        pass
    found.append([store.prepare("t", b"x", group="g").commit()])
    assert prepared is not None
    found.append([store.submit("t", b"x").result(timeout=10)])
    found.append([store.when_settled(store.put("t", b"x", wait=False)).result(timeout=10)])
    found.append([store.put("t", b"x", delay_level=1)])
    return found


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_every_way_in_waits(tmp_path: Path, flush: str) -> None:
    there = {Durability.REPLICATED, Durability.ON_DISK_THERE}
    with opened(tmp_path, flush=flush) as store:
        for receipts in ways_in(store):
            for receipt in receipts:
                assert receipt.status is OK
                assert receipt.durability in ({Durability.REPLICATED} if flush == "sync" else there)
            assert max(made().asked) >= receipts[-1].log_offset + receipts[-1].size
    with opened(tmp_path, flush=flush, outcome="not available") as store:
        assert {each.status for receipts in ways_in(store) for each in receipts} == {NONE}


def test_a_batch_waits_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put_many(messages(50))
        assert len(made().asked) == 1


def test_what_does_not_wait_asks_for_no_copies(tmp_path: Path) -> None:
    with opened(tmp_path, outcome="") as store:
        assert store.put("t", b"x", wait=False).durability is Durability.ACCEPTED
        store.put_many([Message("t", b"x", wait=False)])
        receipts = store.put_copies([(Message("t", b"x"), b"")])
        assert receipts[0].durability is Durability.ACCEPTED
        assert not made().asked
        made().answer(CopyOutcome.LATE)


def test_a_replicator_that_nobody_waits_for_is_told_by_the_follower(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with opened(tmp_path, waits=False, spawn=workers, flush="none") as store:
        before = len(made().told)
        receipts = [store.put("t", b"x") for _ in range(5)]
        assert {each[0] for each in receipts} == {OK}
        assert {each.durability for each in receipts} == {Durability.ACCEPTED}
        assert (len(made().told), made().asked) == (before, [])
        workers.run("penstock-follow")
        workers.run("penstock-follow")
        assert made().told[before:] == [receipts[-1].log_offset + receipts[-1].size]
        assert store.puts_wait is False


def test_under_a_policy_that_waits_only_what_is_durable_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, waits=False, spawn=InlineWorkers(), flush="sync") as store:
        receipt = store.put("t", b"x")
        assert receipt.durability is Durability.ON_DISK
        assert max(made().told) <= store.stats()["flushed_offset"]


def test_puts_of_asyncio_share_their_waits(tmp_path: Path) -> None:
    import asyncio  # noqa: PLC0415 - for this test only

    async def put_two(store: Store) -> list[Receipt]:
        facade = AsyncStore(store)
        jobs = [asyncio.ensure_future(facade.put("t", b"x")) for _ in range(2)]
        while len(made().waiting) < 2:
            await asyncio.sleep(0)
        made().answer(CopyOutcome.ON_DISK)
        return await asyncio.gather(*jobs)

    with opened(tmp_path, outcome="", flush="none") as store:
        assert store.puts_wait
        found = asyncio.run(put_two(store))
        assert [each.durability for each in found] == [Durability.ON_DISK_THERE] * 2


def test_copies_of_what_was_flushed_can_be_awaited(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("t", b"x", wait=False)
        end = store.flush()
        assert store.await_copies() is CopyOutcome.ON_DISK
        assert made().asked == [end]
    with opened(tmp_path, waits=False) as store:
        assert store.await_copies() is None
    with open_store(tmp_path / "s") as store:
        assert store.await_copies() is None


# --- what may go wrong


def test_a_replicator_that_does_not_answer_is_late(tmp_path: Path) -> None:
    with opened(tmp_path, outcome="", timeout_ms=1, flush="none") as store:
        receipt = store.put("t", b"x")
        assert (receipt.status, receipt.durability) == (SLOW, Durability.UNKNOWN)


@pytest.mark.parametrize("call", ["advanced", "copied", "copies", "failed", "close"])
def test_what_a_replicator_raises_stops_nothing(tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    with opened(tmp_path, flush="none") as store:
        made().raises = call
        receipt = store.put("t", b"x")
        if call == "copied":
            assert receipt.status is NONE
        store.put("t", b"x")
        assert store.stats()["copies"] == []
        assert store.summary()
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == (call != "failed")
    with open_store(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.state == "clean"


def test_a_replicator_that_does_not_start_leaves_the_store_closed(tmp_path: Path) -> None:
    class Broken(ScriptedReplicator):
        name = "broken"

        def start(self) -> None:
            raise OSError("the port is taken")

    with pytest.raises(OSError, match="port"):
        open_store(tmp_path / "s", strategies=[Broken], replicate="broken")
    assert made().calls == ["close"]
    open_store(tmp_path / "s").close()


def test_an_unknown_replicator_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownStrategyError, match="replicate"):
        open_store(tmp_path / "s", replicate="carrier-pigeon")
    with pytest.raises(ConfigError, match="replicate\\.use"):
        open_store(tmp_path / "s", replicate=3)
    penstock.open(tmp_path / "p", replicate="none").close()


def test_an_interrupt_while_a_put_waits_leaves_the_store_usable(tmp_path: Path) -> None:
    with opened(tmp_path, outcome="", timeout_ms=60_000, flush="none") as store:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            store.put("t", b"interrupted")
        made().outcome = "on disk"
        assert store.put("t", b"after").durability is Durability.ON_DISK_THERE
        assert [each.body for each in store.scan("t")] == [b"interrupted", b"after"]


def test_a_signal_handler_puts_while_its_thread_waits_for_copies(tmp_path: Path) -> None:
    with opened(tmp_path, outcome="", timeout_ms=60_000, flush="none") as store:

        def handler(*_: object) -> None:
            store.put("t", b"inner", wait=False)
            made().answer(CopyOutcome.ON_DISK)

        before = signal.signal(signal.SIGUSR1, handler)
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
        timer.start()
        try:
            assert store.put("t", b"outer").status is OK
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [each.body for each in store.scan("t")] == [b"outer", b"inner"]


def test_after_a_failed_sync_the_replicator_is_told_and_closed(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, flush="sync", files=files)
    store.put("t", b"x")
    asked = list(made().asked)
    files.plan.fail("sync")
    with pytest.raises(StoreFailedError):
        store.put("t", b"y")
    assert made().asked == asked
    assert made().calls.count("failed") == 1
    with pytest.raises(StoreFailedError):
        store.submit("t", b"z")
    with pytest.raises(StoreFailedError):
        store.close()
    assert "close" in made().calls


def test_a_future_gets_the_failure_of_its_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    workers = ManualWorkers()
    store = opened(tmp_path, flush="none", files=files, spawn=workers, outcome="")
    receipt = store.put("t", b"x", wait=False)
    future = store.when_settled(receipt)
    assert not future.done()
    made().answer(CopyOutcome.RECEIVED)
    assert future.result(timeout=1).durability is Durability.ACCEPTED
    files.plan.fail("sync")
    with pytest.raises(StoreFailedError):
        store.submit("t", b"y").result(timeout=1)
    with pytest.raises(StoreFailedError):
        store.close()


# --- the end, and what is shown


def test_an_orderly_close_gives_the_replicator_everything(tmp_path: Path) -> None:
    store = opened(tmp_path, waits=False, flush="sync")
    store.put("t", b"x", wait=False)
    end = store.stats()["log_end_offset"]
    store.close()
    assert made().at_close == (end, end)
    assert made().told[-1] == end
    assert made().calls.count("close") == 1
    assert not (tmp_path / "s" / "penstock" / "replication").exists()


def test_stats_and_summary_show_the_copies(tmp_path: Path) -> None:
    workers = ManualWorkers()
    with opened(tmp_path, spawn=workers) as store:
        made().states = [CopyState(name="a:1", kind="penstock", received_offset=7, lag_bytes=3)]
        stats = store.stats()
        assert stats["strategies"]["replicate"]["name"] == "scripted"
        assert stats["copies"][0]["received_offset"] == 7
        assert json.dumps(stats["copies"])
        workers.run("penstock-copies")
        lines = store.summary()
        with open_store(tmp_path / "s", read_only=True) as reader:
            shown = [line for line in reader.summary() if line.key.startswith(("replication", "copy"))]  # fmt: skip
        assert shown == [line for line in lines if line.key.startswith(("replication", "copy"))]
        assert [line.key for line in shown] == ["replication", "copy_0"]
    with open_store(tmp_path / "s") as store:
        assert store.stats()["copies"] == []
        assert "replicate" not in store.stats()["strategies"]


def test_changes_of_copies_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    workers = ManualWorkers()
    with opened(tmp_path, spawn=workers):
        for state in (True, True, False):
            made().states = [CopyState(name="a:1", kind="k", received_offset=0, in_sync=state)]
            workers.run("penstock-copies")
        made().states = []
        workers.run("penstock-copies")
    said = [each.getMessage() for each in caplog.records if "copy a:1" in each.getMessage()]
    assert [each.partition("copy a:1")[2] for each in said] == [
        ": k, in sync, 0 bytes, 0.0 s behind", ": k, not in sync, 0 bytes, 0.0 s behind", " is gone",
    ]  # fmt: skip
