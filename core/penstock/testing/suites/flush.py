"""The test suite for the contract of a flush policy."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.contracts import Context, FlushPolicy
from penstock.errors import StoreFailedError
from penstock.message import Durability, PutStatus
from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import open_store
from penstock.testing.suites.base import ContractSuite


class RecordingFlusher:
    """A flusher without a log: its offsets are set by the test."""

    def __init__(self) -> None:
        self.wrote_offset = 0
        self.committed_offset = 0
        self.flushed_offset = 0
        self.flushes = 0
        self.failure: StoreFailedError | None = None

    def append(self, size: int) -> int:
        """Simulate an append of `size` bytes; returns the end."""
        self.wrote_offset += size
        self.committed_offset = self.wrote_offset
        return self.wrote_offset

    def flush(self) -> int:
        """See `contracts.Flusher`."""
        if self.failure is not None:
            raise self.failure
        self.flushes += 1
        self.flushed_offset = self.wrote_offset
        return self.flushed_offset


MakePolicy = Callable[[], FlushPolicy]


class FlushPolicyContract(ContractSuite):
    """Subclass this and return your policy's class from `strategy`."""

    contract = FlushPolicy

    @pytest.fixture
    def flusher(self) -> RecordingFlusher:
        """Return the flusher that is passed to the policy."""
        return RecordingFlusher()

    @pytest.fixture
    def policy(
        self,
        strategy: type[FlushPolicy],
        options: dict[str, Any],
        context: Context,
        flusher: RecordingFlusher,
    ) -> Iterator[FlushPolicy]:
        """Return a started policy."""
        policy = strategy(strategy.Options(**options), context, flusher)
        policy.start()
        yield policy
        policy.close()

    @staticmethod
    def run(workers: ManualWorkers) -> None:
        """Run one step of all background work."""
        for name in list(workers.by_name):
            workers.run(name)

    def settings(
        self, strategy: type[FlushPolicy], options: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        """Return the settings of a store that uses the policy under test."""
        given = {f"flush.{strategy.name}.{key}": value for key, value in options.items()}
        return {"strategies": [strategy], "flush": strategy.name, **given, **more}

    def test_it_says_whether_puts_wait(self, strategy: type[FlushPolicy]) -> None:
        """`appender_waits`, which the kernel uses, agrees with the capability "waits", which users see."""
        assert strategy.appender_waits == ("waits" in strategy.capabilities)

    def test_a_request_is_met_soon(
        self, policy: FlushPolicy, flusher: RecordingFlusher, workers: ManualWorkers
    ) -> None:
        """A request for durability is met without another put."""
        policy.after_append(flusher.append(100))
        policy.request()
        self.run(workers)
        assert flusher.flushed_offset == 100

    def test_nothing_to_flush_is_fine(
        self, policy: FlushPolicy, flusher: RecordingFlusher, workers: ManualWorkers
    ) -> None:
        """A request without unflushed bytes is harmless, as at the start."""
        policy.request()
        for _ in range(3):
            self.run(workers)
        assert flusher.flushed_offset == 0

    def test_under_group_commit_a_request_always_flushes(
        self,
        policy: FlushPolicy,
        strategy: type[FlushPolicy],
        flusher: RecordingFlusher,
        workers: ManualWorkers,
    ) -> None:
        """A request flushes even if the bytes were synced meanwhile, since that flush notifies the requester."""
        if strategy.group_commit:
            self.run(workers)
            before = flusher.flushes
            policy.request()
            self.run(workers)
            assert flusher.flushes > before

    def test_what_was_put_becomes_durable_in_time_if_it_says_so(
        self,
        policy: FlushPolicy,
        strategy: type[FlushPolicy],
        flusher: RecordingFlusher,
        workers: ManualWorkers,
        clock: ManualClock,
    ) -> None:
        """With the capability "syncs", bytes become durable within a minute, without a request."""
        policy.after_append(flusher.append(1))
        for _ in range(600):
            clock.now_ms += 100
            self.run(workers)
        if "syncs" in strategy.capabilities:
            assert flusher.flushed_offset == 1

    def test_a_failed_flush_does_not_kill_its_thread(
        self, policy: FlushPolicy, flusher: RecordingFlusher, workers: ManualWorkers
    ) -> None:
        """The store has notified every waiter, so the background work must not raise in addition."""
        flusher.append(100_000)
        flusher.failure = StoreFailedError("the disk fails", 0)
        # In the caller's thread, the policy may raise.
        with contextlib.suppress(StoreFailedError):
            policy.request()
        self.run(workers)
        self.run(workers)

    def test_closing_ends_its_threads(
        self, strategy: type[FlushPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """No thread continues after the store was closed."""
        before = set(threading.enumerate())
        open_store(tmp_path / "s", **self.settings(strategy, options)).close()
        assert set(threading.enumerate()) <= before

    def test_a_put_says_what_is_known(
        self, strategy: type[FlushPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """A receipt says ON_DISK only if the message is; a put without waiting is accepted; a future is done once durable."""
        with open_store(tmp_path / "s", **self.settings(strategy, options)) as store:
            receipt = store.put("t", b"waits")
            end = receipt.log_offset + receipt.size
            if strategy.appender_waits:
                assert receipt.durability is Durability.ON_DISK
            if receipt.durability is Durability.ON_DISK:
                assert store.stats()["flushed_offset"] >= end
            quick = store.put("t", b"does not", wait=False)
            assert quick.status is PutStatus.PUT_OK
            future = store.submit("t", b"later")
            done = future.result(timeout=30)
            assert done.durability is Durability.ON_DISK
            assert store.stats()["flushed_offset"] >= done.log_offset + done.size

    def test_flush_makes_everything_durable(
        self, strategy: type[FlushPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """`flush` makes all messages durable under any policy, and across a segment roll."""
        with open_store(tmp_path / "s", **self.settings(strategy, options)) as store:
            for _ in range(100):
                store.put("t", b"x" * 2000, wait=False)
            end = store.stats()["log_end_offset"]
            assert store.flush() == end == store.stats()["flushed_offset"]

    def test_a_failed_sync_stops_the_store_and_nothing_is_retried(
        self, strategy: type[FlushPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Every waiter and later call gets the same error; reading continues; reopening recovers."""
        files = FaultyFiles()
        chosen = self.settings(strategy, options)
        store = open_store(tmp_path / "s", files=files, **chosen)
        store.put("t", b"good")
        durable = store.flush()
        files.plan.fail("sync")
        with contextlib.suppress(StoreFailedError):
            store.put("t", b"in doubt")
        with pytest.raises(StoreFailedError):
            store.flush()
        files.plan.heal()
        with pytest.raises(StoreFailedError) as caught:
            store.put("t", b"refused")
        assert caught.value.durable_offset == durable
        with pytest.raises(StoreFailedError):
            store.flush()
        assert next(m.body for m in store.scan("t")) == b"good"
        with pytest.raises(StoreFailedError):
            store.close()
        with open_store(tmp_path / "s", **chosen) as store:
            assert [m.body for m in store.scan("t")] in ([b"good"], [b"good", b"in doubt"])
            store.put("t", b"well again")
            assert not list(store.verify())

    def test_many_threads_put_at_once(
        self, strategy: type[FlushPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Each message is stored once, in the order of its thread."""
        with open_store(tmp_path / "s", **self.settings(strategy, options)) as store:

            def produce(queue: int) -> None:
                for number in range(60):
                    store.put("t", b"%d" % number, queue=queue)

            threads = [threading.Thread(target=produce, args=(queue,)) for queue in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for queue in range(4):
                bodies = [m.body for m in store.scan("t", queue=queue)]
                assert bodies == [b"%d" % number for number in range(60)]
