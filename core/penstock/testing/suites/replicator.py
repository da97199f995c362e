"""The test suite for the contract of a replicator."""

import contextlib
import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from penstock.contracts import Context, CopyOutcome, CopyState, LentFile, Replicator, Strategy
from penstock.errors import OffsetError, StoreFailedError
from penstock.message import Durability, PutStatus, Receipt
from penstock.store.store import Store
from penstock.testing.control import ManualWorkers
from penstock.testing.crash import Plot, plot_for
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import messages, open_store
from penstock.testing.suites.base import ContractSuite

# How long a test waits for something that a thread of the replicator does.
LIMIT_S = 30.0
_STATUSES = {
    Durability.ON_DISK_THERE: PutStatus.PUT_OK,
    Durability.REPLICATED: PutStatus.PUT_OK,
}


class RecordedLog:
    """A log in memory, for a replicator without a store."""

    def __init__(self, root: Path, segment_bytes: int = 64 * 1024) -> None:
        self.root = root
        self.segment_bytes = segment_bytes
        self.min_offset = 0
        self.data = b""

    @property
    def visible_offset(self) -> int:
        """See `contracts.ReplicatedLog`."""
        return len(self.data)

    flushed_offset = wrote_offset = visible_offset

    def append(self, size: int) -> int:
        """Append bytes; returns the end."""
        self.data += bytes(range(256)) * (size // 256) + bytes(size % 256)
        return len(self.data)

    def read(self, log_offset: int, size: int) -> bytes:
        """See `contracts.ReplicatedLog`."""
        self._check(log_offset)
        room = self.segment_bytes - log_offset % self.segment_bytes
        return self.data[log_offset : log_offset + min(size, room)]

    @contextlib.contextmanager
    def lend_file(self, log_offset: int) -> Iterator[LentFile]:
        """See `contracts.ReplicatedLog`."""
        self._check(log_offset)
        position = log_offset % self.segment_bytes
        room = min(self.segment_bytes - position, len(self.data) - log_offset)
        yield LentFile(None, position, room)

    def _check(self, log_offset: int) -> None:
        if not self.min_offset <= log_offset <= len(self.data):
            raise OffsetError(log_offset, self.min_offset, len(self.data) + 1)

    def time_ms_at(self, _log_offset: int) -> int:
        """See `contracts.ReplicatedLog`."""
        return 1_700_000_000_000

    def removed_topics(self) -> Sequence[tuple[str, int]]:
        """See `contracts.ReplicatedLog`."""
        return []


class CopyAnswers:
    """The outcomes that a replicator gave, by the number of the request. Safe from any thread."""

    def __init__(self) -> None:
        self.outcomes: list[list[CopyOutcome]] = []

    def request(self, replicator: Replicator, end_offset: int) -> None:
        """Request the outcome of one range."""
        mine: list[CopyOutcome] = []
        self.outcomes.append(mine)
        replicator.copied(end_offset, mine.append)

    @property
    def are_single(self) -> bool:
        """Whether every request was answered once."""
        return all(len(each) == 1 for each in self.outcomes)


def _wait_until(done: Any) -> None:
    limit = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit, "the replicator's threads did not do it in time"
        time.sleep(0.005)


class ReplicatorContract(ContractSuite):
    """Subclass this and return your replicator's class from `strategy`.

    A replicator whose copies need a partner works without one here: its puts are not copied, and their receipts say so. Override
    `options` so that it finds no partner, or one of the test's own, and that its time-out is short; and `copied_bytes`, if you can
    read a copy: then the tests are stricter.
    """

    contract = Replicator

    def copied_bytes(self, store_path: Path) -> bytes | None:
        """Return the bytes of the copy of a closed store, from the first that its log has; None if they cannot be read."""
        return None

    def crash_plot(self, strategy: type[Strategy], options: dict[str, Any]) -> Plot:
        """See `ContractSuite`; with the options of the suite."""
        return plot_for(strategy, options=options)

    @pytest.fixture
    def log(self, context: Context) -> RecordedLog:
        """Return a log without a store."""
        return RecordedLog(context.root)

    @pytest.fixture
    def replicator(
        self,
        strategy: type[Replicator],
        options: dict[str, Any],
        context: Context,
        log: RecordedLog,
        workers: ManualWorkers,
    ) -> Iterator[Replicator]:
        """Return a started replicator."""
        made = strategy(strategy.Options(**options), context, log)
        made.start()
        yield made
        workers.run_all()
        made.close()

    @staticmethod
    def opened(
        strategy: type[Replicator], options: dict[str, Any], path: Path, **more: Any
    ) -> Store:
        """Return a small store with the replicator."""
        given = {f"replicate.{strategy.name}.{key}": value for key, value in options.items()}
        chosen: dict[str, Any] = {"replicate": strategy.name, **given, **more}
        return open_store(path, strategies=[strategy], **chosen)

    # --- without a store

    def test_it_says_whether_puts_wait(self, replicator: Replicator) -> None:
        """Puts wait only for a replicator with the capability "waits", and its time-out is positive."""
        assert isinstance(replicator.appender_waits, bool)
        assert not replicator.appender_waits or "waits" in replicator.capabilities
        assert replicator.timeout_ms > 0
        assert replicator.role == replicator.role.strip().lower() != ""

    def test_each_request_is_answered_once_at_the_latest_by_close(
        self, replicator: Replicator, log: RecordedLog, workers: ManualWorkers
    ) -> None:
        """Every `notify` is called once, also for bytes that never become visible, and also after `close`."""
        answers = CopyAnswers()
        for _ in range(10):
            end = log.append(3000)
            replicator.advanced(end)
            answers.request(replicator, end)
            workers.run_all()
        answers.request(replicator, log.visible_offset + 1000)
        answers.request(replicator, 0)
        replicator.close()
        _wait_until(lambda: answers.are_single)
        answers.request(replicator, log.visible_offset)
        _wait_until(lambda: answers.are_single)
        assert answers.outcomes[10][0] in (CopyOutcome.LATE, CopyOutcome.NOT_AVAILABLE)

    def test_an_outcome_is_no_better_than_the_copies(
        self, replicator: Replicator, log: RecordedLog, workers: ManualWorkers
    ) -> None:
        """`ON_DISK` and `RECEIVED` are answered only if some copy is that far."""
        answers = CopyAnswers()
        end = log.append(5000)
        replicator.advanced(end)
        answers.request(replicator, end)
        workers.run_all()
        found = [outcome for each in answers.outcomes for outcome in each]
        if CopyOutcome.ON_DISK in found:
            assert max(each.flushed_offset or 0 for each in replicator.copies()) >= end
        if CopyOutcome.RECEIVED in found:
            assert max(each.received_offset for each in replicator.copies()) >= end

    def test_an_offset_may_go_back_and_repeat(
        self, replicator: Replicator, log: RecordedLog, workers: ManualWorkers
    ) -> None:
        """`advanced` is called by several threads, so an earlier offset may come after a later one."""
        end = log.append(5000)
        for offset in (end, 0, end // 2, end, end):
            replicator.advanced(offset)
            workers.run_all()
        assert all(each.received_offset <= end for each in replicator.copies())

    def test_many_threads_are_answered(
        self, replicator: Replicator, log: RecordedLog, workers: ManualWorkers
    ) -> None:
        """Requests of many threads at once are each answered once."""
        each_has = [CopyAnswers() for _ in range(4)]
        end = log.append(20_000)

        def ask(answers: CopyAnswers) -> None:
            for number in range(200):
                replicator.advanced(end)
                answers.request(replicator, min(100 * number, end))

        threads = [threading.Thread(target=ask, args=(answers,)) for answers in each_has]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        workers.run_all()
        replicator.close()
        for answers in each_has:
            _wait_until(lambda answers=answers: answers.are_single)
            assert len(answers.outcomes) == 200

    def test_a_signal_handler_may_put_while_its_thread_does(
        self, replicator: Replicator, log: RecordedLog
    ) -> None:
        """`advanced` and `copied` do not wait for a lock that the interrupted thread holds."""
        end, answers = log.append(1000), CopyAnswers()
        ends_at = time.monotonic() + LIMIT_S

        def interrupt(*_: object) -> None:
            assert time.monotonic() < ends_at
            replicator.advanced(end)
            answers.request(replicator, end)

        before = signal.signal(signal.SIGALRM, interrupt)
        # The last signals come to a thread that waits for itself, if it does: then this exception ends the wait.
        stuck = signal.signal(signal.SIGVTALRM, _give_up)
        main = threading.main_thread().ident
        assert main is not None
        watch = threading.Timer(LIMIT_S, signal.pthread_kill, (main, signal.SIGVTALRM))
        watch.start()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
            for _ in range(5000):
                replicator.advanced(end)
                answers.request(replicator, end)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            watch.cancel()
            signal.signal(signal.SIGALRM, before)
            signal.signal(signal.SIGVTALRM, stuck)
        replicator.close()
        _wait_until(lambda: answers.are_single)

    def test_states_can_be_shown(
        self, replicator: Replicator, log: RecordedLog, workers: ManualWorkers
    ) -> None:
        """States, summary lines and figures hold plain values, and offsets that the log has."""
        replicator.advanced(log.append(5000))
        workers.run_all()
        for state in replicator.copies():
            assert isinstance(state, CopyState)
            assert 0 <= state.received_offset <= log.visible_offset
            assert state.flushed_offset is None or state.flushed_offset <= state.received_offset
            assert state.lag_bytes >= 0
            assert state.lag_ms >= 0
            json.dumps(attrs.asdict(state))
        lines = replicator.summary()
        assert replicator.role in lines[0].text
        assert len({line.key for line in lines}) == len(lines)
        assert json.dumps([list(line) for line in lines])
        assert json.dumps(replicator.stats())

    def test_retention_may_be_faster(
        self, replicator: Replicator, log: RecordedLog, workers: ManualWorkers
    ) -> None:
        """The log may lose its head before it was copied; the replicator goes on, and says so in its states."""
        replicator.advanced(log.append(3 * log.segment_bytes))
        log.min_offset = 2 * log.segment_bytes
        workers.run_all()
        replicator.advanced(log.append(1000))
        workers.run_all()
        assert list(replicator.copies()) is not None

    def test_it_can_be_closed_in_any_state(
        self,
        strategy: type[Replicator],
        options: dict[str, Any],
        context: Context,
        log: RecordedLog,
    ) -> None:
        """`close` may be called twice, after `failed`, and although `start` was not called."""
        strategy(strategy.Options(**options), context, log).close()
        made = strategy(strategy.Options(**options), context, log)
        made.start()
        made.failed("the disk fails")
        made.close()
        made.close()

    # --- with a store

    def test_a_store_with_it_keeps_every_message(
        self, strategy: type[Replicator], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """Every way in stores its messages, whatever becomes of the copies; receipts say what is known."""
        path = tmp_path / "s"
        sent: list[bytes] = []

        def body() -> bytes:
            sent.append(b"%d" % len(sent))
            return sent[-1]

        with self.opened(strategy, options, path) as store:
            receipts: list[Receipt] = [store.put("t", body())]
            with store.transaction() as tx:
                tx.put("t", body())
                tx.put("t", body())
            receipts += tx.receipts
            receipts.append(store.submit("t", body()).result(timeout=LIMIT_S))
            with store.prepare("t", body(), group="g"):
                pass
            receipts += store.put_many(
                message.__replace__(topic="t", queue=0, body=body()) for message in messages(20)
            )
            receipts.append(store.put("t", body(), wait=False))
            assert receipts[-1].status is PutStatus.PUT_OK
            for receipt in receipts:
                assert receipt.status is _STATUSES.get(receipt.durability, receipt.status)
                if receipt.durability in (Durability.ON_DISK, Durability.REPLICATED):
                    assert store.stats()["flushed_offset"] >= receipt.log_offset + receipt.size
            assert len(json.dumps(store.stats()["copies"])) > 0
            assert "replication" in [line.key for line in store.summary()]
        with self.opened(strategy, options, path) as store:
            assert [message.body for message in store.scan("t")] == sent
            assert not list(store.verify())

    def test_an_orderly_close_leaves_the_copy_complete(
        self, strategy: type[Replicator], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """What was put before the close is in the copy, over segment rolls and a reopening."""
        path = tmp_path / "s"
        for first in (0, 1000):
            with self.opened(strategy, options, path) as store:
                store.put_many(messages(1000, first=first, body_bytes=200))
            end, data = _log_of(path)
            copied = self.copied_bytes(path)
            if copied is None:
                pytest.skip("the suite cannot read a copy; see `copied_bytes`")
            assert copied[:end] == data[:end]

    def test_closing_ends_its_threads(
        self, strategy: type[Replicator], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """No thread continues after the store was closed."""
        before = set(threading.enumerate())
        with self.opened(strategy, options, tmp_path / "s") as store:
            store.put("t", b"x")
        assert set(threading.enumerate()) <= before

    def test_a_failed_store_still_closes(
        self, strategy: type[Replicator], options: dict[str, Any], tmp_path: Path
    ) -> None:
        """After a failed sync the store raises, releases its lock, and opens again."""
        files = FaultyFiles()
        store = self.opened(strategy, options, tmp_path / "s", files=files)
        store.put("t", b"good")
        store.flush()
        files.plan.fail("sync")
        with contextlib.suppress(StoreFailedError):
            store.put("t", b"in doubt")
        with pytest.raises(StoreFailedError):
            store.flush()
        files.plan.heal()
        with pytest.raises(StoreFailedError):
            store.close()
        with self.opened(strategy, options, tmp_path / "s") as store:
            assert [m.body for m in store.scan("t")] in ([b"good"], [b"good", b"in doubt"])
            store.put("t", b"well again")


def _give_up(*_: object) -> None:
    raise AssertionError("a thread waits for a lock that it holds itself")


def _log_of(path: Path) -> tuple[int, bytes]:
    """Return the size of a closed store's log, and its bytes."""
    with open_store(path, read_only=True) as store:
        end = store.stats()["log_end_offset"]
    files = sorted((path / "commitlog").iterdir())
    return end, b"".join(itertools.chain(file.read_bytes() for file in files))
