"""The base of all contract suites, and those of flush policies, retention policies and extensions."""

import contextlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from penstock.contracts import (
    CONTRACT_VERSION,
    Context,
    DiskUse,
    Extension,
    FlushPolicy,
    RetentionPolicy,
    SegmentInfo,
    Strategy,
)
from penstock.errors import MessageError, ReadOnlyError, StoreFailedError
from penstock.message import Durability, Message, PutStatus
from penstock.store.store import Store
from penstock.testing.crash import explore, plot_for
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import (
    SMALL,
    ManualClock,
    ManualWorkers,
    make_context,
    messages,
    open_store,
    registry_with,
)


class ContractSuite(ABC):
    """Subclass one of the suites derived from this, and return your class from `strategy`."""

    contract: ClassVar[type[Strategy]]

    @pytest.fixture
    @abstractmethod
    def strategy(self) -> type[Strategy]:
        """Return the class under test."""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        """Return options other than the defaults."""
        return {}

    @pytest.fixture
    def files(self) -> FaultyFiles:
        """Return the file system that is passed to the strategy."""
        return FaultyFiles()

    @pytest.fixture
    def workers(self) -> ManualWorkers:
        """Return background workers that run only when the test runs them."""
        return ManualWorkers()

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return a clock that does not advance until the test sets it."""
        return ManualClock()

    @pytest.fixture
    def context(
        self, tmp_path: Path, files: FaultyFiles, workers: ManualWorkers, clock: ManualClock
    ) -> Context:
        """Return the context that the kernel would pass to the strategy."""
        return make_context(tmp_path / "store", files=files, spawn=workers, clock=clock)

    def test_it_is_a_strategy_of_this_contract(self, strategy: type[Strategy]) -> None:
        """The class derives from the contract, has a name in kebab-case, and implements every method."""
        assert issubclass(strategy, self.contract)
        assert strategy.name == strategy.name.lower()
        assert " " not in strategy.name
        assert not getattr(strategy, "__abstractmethods__", None)
        assert strategy.needs_contract <= CONTRACT_VERSION
        registry_with([strategy])

    def test_options_are_frozen_and_have_defaults(self, strategy: type[Strategy]) -> None:
        """Every option has a default and cannot be changed later."""
        assert attrs.has(strategy.Options)
        made = strategy.Options()
        for field in attrs.fields(strategy.Options):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(made, field.name, None)

    def test_it_says_what_it_is(self, strategy: type[Strategy]) -> None:
        """The class has a docstring, which `penstock plugins` shows; its capabilities are a frozenset of strings."""
        assert (strategy.__doc__ or "").strip()
        assert isinstance(strategy.capabilities, frozenset)
        assert all(isinstance(word, str) for word in strategy.capabilities)

    def test_conflict_answers_a_reason_or_none(self, strategy: type[Strategy]) -> None:
        """`conflict` is called before a store is opened, with the names of all picked strategies."""
        picks = {kind: ["other"] for kind in ("write", "alloc", "flush", "index", "retention")}
        reason = strategy.conflict(picks)
        assert reason is None or reason.strip()

    def test_a_crash_anywhere_keeps_what_was_promised(self, strategy: type[Strategy]) -> None:
        """A store keeps its guarantees when a disk that loses unsynced bytes is crashed anywhere in a story."""
        if "own-files" in strategy.capabilities:
            pytest.skip("its files are not touched through Context.files; see `explore_kills`")
        outcomes = list(explore(plot_for(strategy), cases=48))
        assert not [outcome.problem for outcome in outcomes if outcome.problem]
        assert len(outcomes) > 20


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

    def settings(
        self, strategy: type[FlushPolicy], options: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        """Return the settings of a store that uses the policy under test."""
        given = {f"flush.{strategy.name}.{key}": value for key, value in options.items()}
        return {"strategies": [strategy], "flush": strategy.name, **given, **more}

    def test_a_request_is_met_soon(
        self, policy: FlushPolicy, flusher: RecordingFlusher, workers: ManualWorkers
    ) -> None:
        """A request for durability is met without another put."""
        policy.after_append(flusher.append(100))
        policy.request()
        workers.run_all()
        assert flusher.flushed_offset == 100

    def test_nothing_to_flush_is_fine(
        self, policy: FlushPolicy, flusher: RecordingFlusher, workers: ManualWorkers
    ) -> None:
        """A request without unflushed bytes is harmless, as at the start."""
        policy.request()
        for _ in range(3):
            workers.run_all()
        assert flusher.flushed_offset == 0

    def test_where_puts_wait_a_request_always_flushes(
        self,
        policy: FlushPolicy,
        strategy: type[FlushPolicy],
        flusher: RecordingFlusher,
        workers: ManualWorkers,
    ) -> None:
        """A request flushes even if the bytes were synced meanwhile, since that flush notifies the requester."""
        if strategy.waits:
            workers.run_all()
            before = flusher.flushes
            policy.request()
            workers.run_all()
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
            workers.run_all()
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
        workers.run_all()
        workers.run_all()

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
        """A receipt says ON_DISK only if the message is; a put need not wait; a future is done once durable."""
        with open_store(tmp_path / "s", **self.settings(strategy, options)) as store:
            receipt = store.put("t", b"waits")
            end = receipt.log_offset + receipt.size
            if strategy.waits:
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


HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


class RetentionPolicyContract(ContractSuite):
    """Subclass this and return your policy's class from `strategy`."""

    contract = RetentionPolicy

    @pytest.fixture
    def policy(
        self, strategy: type[RetentionPolicy], options: dict[str, Any], context: Context
    ) -> RetentionPolicy:
        """Return a policy that has not voted yet."""
        return strategy(strategy.Options(**options), context)

    @staticmethod
    def segments(ages_hours: list[float], size: int = 1 << 30) -> list[SegmentInfo]:
        """Return segments of these ages, oldest first."""
        return [
            SegmentInfo(number * size, size, int(NOW_MS - age * HOUR_MS), Path(f"{number:020d}"))
            for number, age in enumerate(ages_hours)
        ]

    @pytest.mark.parametrize("seed", range(5))
    def test_a_vote_is_a_number_of_the_oldest_and_a_reason(
        self, policy: RetentionPolicy, seed: int
    ) -> None:
        """A vote is valid for any log, any hour and any disk use."""
        rng = random.Random(seed)
        print("seed", seed)
        for _ in range(50):
            ages = sorted((rng.uniform(0, 500) for _ in range(rng.randrange(1, 30))), reverse=True)
            disk = DiskUse(rng.randrange(1 << 40), rng.randrange(1 << 40))
            now = NOW_MS + rng.randrange(48) * HOUR_MS
            vote = policy.vote(self.segments(ages), now, disk)
            assert 0 <= vote.expired_count <= len(ages)
            assert vote.reason.strip()
            assert isinstance(vote.refuse_writes, bool)

    @pytest.mark.parametrize("now_ms", [0, NOW_MS, 1 << 41])
    @pytest.mark.parametrize("disk", [(0, 0), (0, 1), (1, 0), (1 << 60, 1 << 60)])
    def test_odd_clocks_disks_and_logs(
        self, policy: RetentionPolicy, now_ms: int, disk: tuple[int, int]
    ) -> None:
        """`vote` raises nothing for unusual clocks, disks and logs: the kernel would only log the exception."""
        for segments in (
            self.segments([]), self.segments([5.0]), self.segments([-100.0, 1e4, 0.0]),
        ):  # fmt: skip
            assert policy.vote(segments, now_ms, DiskUse(*disk)).expired_count <= len(segments)

    def test_it_does_not_touch_the_disk(self, policy: RetentionPolicy, files: FaultyFiles) -> None:
        """The policy makes no file system calls: everything it needs is passed to `vote`."""
        before = dict(files.plan.counts)
        policy.vote(self.segments([100.0, 50.0, 1.0]), NOW_MS, DiskUse(90, 10))
        assert files.plan.counts == before

    def test_it_refuses_writes_only_if_it_says_so(
        self, policy: RetentionPolicy, strategy: type[RetentionPolicy]
    ) -> None:
        """On a full disk the policy refuses writes if and only if it has the capability "refuses-writes"."""
        vote = policy.vote(self.segments([1.0, 0.5]), NOW_MS, DiskUse(1000, 0))
        assert vote.refuse_writes == ("refuses-writes" in strategy.capabilities)

    def test_a_store_with_it_loses_only_its_oldest(
        self, strategy: type[RetentionPolicy], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Whatever the policy votes, the last segment is never deleted, and all remaining messages can be read."""
        clock = ManualClock()
        given = {f"retention.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"retention": [strategy.name], **given}
        with open_store(
            tmp_path / "s", strategies=[strategy], clock=clock, spawn=ManualWorkers(), **chosen
        ) as store:
            sent = 0
            for _ in range(24):
                clock.now_ms += 5 * HOUR_MS
                for _ in range(10):
                    try:
                        store.put("t", b"%d:" % sent + b"x" * 3000)
                        sent += 1
                    except ReadOnlyError:
                        break
                store.flush()
                store.retain()
            kept = [int(m.body.partition(b":")[0]) for m in store.scan("t")]
            assert kept == list(range(sent - len(kept), sent))
            assert store.stats()["segments"] >= 1
            if sent * 3000 > SMALL.segment_bytes:
                assert kept
            assert not list(store.verify())


COUNT = 60

# Requests that a message may have besides to be stored.
REQUESTS: tuple[dict[str, Any], ...] = (
    {"partition_key": "k"},
    {"queue": 0, "delay_level": 3},
    {"queue": 0, "delay": 5},
    {"queue": 0, "deliver_at": 4_000_000_000},
)


class ExtensionContract(ContractSuite):
    """Subclass this and return your extension's class from `strategy`."""

    contract = Extension

    @staticmethod
    def opened(
        strategy: type[Extension], options: dict[str, Any], path: Path, **more: Any
    ) -> tuple[Store, ManualWorkers]:
        """Return a small store with the extension, and its background workers."""
        given = {f"extensions.{strategy.name}.{key}": value for key, value in options.items()}
        workers = ManualWorkers()
        chosen: dict[str, Any] = {"extensions": [strategy.name], **given, **more}
        return open_store(path, strategies=[strategy], spawn=workers, **chosen), workers

    def test_a_store_with_it_keeps_every_message(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Plain messages are stored unchanged, in order, and are there after the store was closed and opened again."""
        sent = messages(COUNT)
        store, workers = self.opened(strategy, options, tmp_path / "s")
        with store:
            store.put_many(sent[: COUNT // 2])
            workers.run_all()
            for message in sent[COUNT // 2 :]:
                store.put(
                    message.topic,
                    message.body,
                    queue=message.queue,
                    tag=message.tag,
                    keys=message.keys,
                )
            workers.run_all()
        store, workers = self.opened(strategy, options, tmp_path / "s")
        with store:
            workers.run_all()
            for topic in {message.topic for message in sent}:
                wanted = [message.body for message in sent if message.topic == topic]
                assert [found.body for found in store.scan(topic)] == wanted
            assert not list(store.verify())

    def test_a_store_is_read_with_it(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """A store that another process writes is opened read-only, and closed, while that process goes on."""
        writer, workers = self.opened(strategy, options, tmp_path / "s")
        with writer:
            writer.put_many(messages(COUNT))
            workers.run_all()
            reader, reading = self.opened(strategy, options, tmp_path / "s", read_only=True)
            with reader:
                reading.run_all()
                assert reader.topics(system=True) == writer.topics(system=True)
            writer.put("t", b"after")
            workers.run_all()

    def test_it_can_be_detached_twice(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """`detach` may be called again: the close of a store may be interrupted, and repeated."""
        store, _ = self.opened(strategy, options, tmp_path / "s")
        extension = store.lowlevel.extension(strategy.name)
        extension.detach()
        extension.detach()
        store.close()

    def test_it_rewrites_to_plain_messages_or_not_at_all(
        self, strategy: type[Extension], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """What `rewrite` returns has a queue number, and requests nothing more."""
        store, _ = self.opened(strategy, options, tmp_path / "s")
        with store:
            extension = store.lowlevel.extension(strategy.name)
            for requests in REQUESTS:
                try:
                    made = extension.rewrite(Message("t", b"x", **requests))
                except MessageError:
                    continue
                if made is None:
                    continue
                message = made[0] if isinstance(made, tuple) else made
                assert isinstance(message.queue, int)
                assert (message.partition_key, message.delay_level) == (None, 0)
                assert (message.delay, message.deliver_at) == (0, None)

    def test_it_provides_what_it_says(self, strategy: type[Extension]) -> None:
        """Every name in `provides` is a public method of `Store` and of the extension."""
        for name in strategy.provides:
            assert callable(getattr(Store, name)), name
            assert callable(getattr(strategy, name)), name

    @pytest.mark.parametrize(
        "call", ["check_put", "queues_of", "rewrite", "attach", "detach", "summary", "stats"]
    )
    def test_it_has_the_methods_of_the_contract(self, strategy: type[Extension], call: str) -> None:
        """No method of the contract is replaced by something that cannot be called."""
        assert callable(getattr(strategy, call))
