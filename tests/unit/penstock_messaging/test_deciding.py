"""Messages of a transaction, and the acknowledgements of others: both or neither, whatever fails."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import LostQueueError, Message, StorageError, Store, StoreFailedError
from penstock.contracts import Consumer
from penstock.errors import StoreClosedError
from penstock.files.lock_file import Lock
from penstock.store.message_batch import StoreBatch
from penstock.testing import FaultyFiles, InlineWorkers, ManualClock, open_store
from penstock_messaging.consuming.consumed_message import BOUND, DONE, OUT
from penstock_messaging.extension import MessagingExtension
from penstock_messaging.transactions import decision_file
from penstock_messaging.transactions.deciding import Deciding, _as_ranges
from penstock_messaging.transactions.decision_file import decision_path, read_decisions


class KillableFiles(FaultyFiles):
    """Records the locks of queues as well."""

    def lock_one(self, path: Path) -> Lock | None:
        lock = super().lock_one(path)
        if lock is not None:
            self._locks.append(lock)
        return lock


class Opened:
    """A store whose files can fail, with a consumer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = KillableFiles()
        self.workers = InlineWorkers()
        self.store: Store = open_store(
            path, files=self.files, clock=ManualClock(), spawn=self.workers, retention=[]
        )
        if "in" not in self.store.topics():
            self.store.put_many([Message("in", b"%d" % n) for n in range(10)])
        self.consumer: Consumer = self.store.consumer("g", "in")

    def move(self, count: int = 1) -> list[int]:
        """Move messages in one transaction; return their offsets."""
        given = self.consumer.poll(count, 0)
        with self.store.transaction() as tx:
            tx.ack(given)
            for message in given:
                tx.put("out", message.body)
        return [each.queue_offset for each in given]

    @property
    def deciding(self) -> Deciding:
        messaging = self.store.extension("messaging")
        assert isinstance(messaging, MessagingExtension)
        return messaging.deciding

    def die(self) -> None:
        """Leave everything as a kill does."""
        self.files.plan.watch = None
        self.files.plan.is_dead = True
        self.files.abandon()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "store")
    yield made
    if not made.files.plan.is_dead:
        made.store.close()


def outputs(store: Store) -> list[int]:
    return (
        sorted(int(message.body) for message in store.scan("out"))
        if "out" in store.topics()
        else []
    )


def left(path: Path) -> list[int]:
    """Open the store again, and return what a consumer gets."""
    with penstock.open(path) as store, store.consumer("g", "in") as consumer:
        found = [each.queue_offset for each in consumer.poll(100, 0)]
        assert sorted([*outputs(store), *found]) == list(range(10))
        return found


def undecided_in(store: Store) -> list[object]:
    """Return what `penstock stat` says about transactions."""
    return [line.value for line in store.summary() if line.key == "undecided"]


def test_ranges() -> None:
    assert _as_ranges([1, 2, 3, 7, 9, 10]) == ((1, 4), (7, 8), (9, 11))


def test_both_are_done(opened: Opened) -> None:
    given = opened.consumer.poll(3, 0)
    with opened.store.transaction() as tx:
        tx.ack(given[0])
        tx.ack(given[1:])
        tx.put("out", b"0")
        tx.put("elsewhere", b"1", delay_level=1)
        assert opened.store.topics() == {"in": [0]}
    assert [each.queue_offset for each in tx.receipts] == [0, 0]
    assert {each.state for each in given} == {DONE}
    assert [each.queue_offset for each in opened.consumer.poll(1, 0)] == [3]
    path = decision_path(opened.path)
    assert undecided_in(opened.store) == []
    assert len(read_decisions(opened.files, opened.path).decisions) == 1
    opened.consumer.close()
    opened.store.close()
    assert not path.exists()


def test_an_exception_in_the_block_does_neither(opened: Opened) -> None:
    given = opened.consumer.poll(3, 0)
    with pytest.raises(ZeroDivisionError), opened.store.transaction() as tx:
        tx.put("out", b"0")
        tx.ack(given)
        assert {each.state for each in given} == {BOUND}
        raise ZeroDivisionError
    assert {each.state for each in given} == {OUT}
    assert not decision_path(opened.path).exists()
    assert opened.store.topics() == {"in": [0]}
    opened.consumer.release(given)
    assert opened.move(2) == [0, 1]


def test_without_messages_it_is_an_acknowledgement(opened: Opened) -> None:
    given = opened.consumer.poll(3, 0)
    with opened.store.transaction() as tx:
        tx.ack(given)
    assert tx.receipts == ()
    assert {each.state for each in given} == {DONE}
    assert not decision_path(opened.path).exists()


def test_a_lost_queue_stores_nothing(opened: Opened) -> None:
    given = opened.consumer.poll(3, 0)
    with pytest.raises(LostQueueError), opened.store.transaction() as tx:
        tx.ack(given)
        tx.put("out", b"0")
        opened.consumer.close()
    assert opened.store.topics() == {"in": [0]}
    opened.consumer = opened.store.consumer("g", "in")
    assert opened.move(3) == [0, 1, 2]


def test_a_seek_in_the_block_stores_nothing(opened: Opened) -> None:
    given = opened.consumer.poll(3, 0)
    with pytest.raises(LostQueueError), opened.store.transaction() as tx:
        tx.ack(given)
        tx.put("out", b"0")
        opened.consumer.seek("in", offset=5)
    assert opened.move(1) == [5]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_queue_that_is_lost_while_the_decision_is_written_stores_nothing(
    when: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next owner had taken it without a look at the decision, and got messages whose outputs were stored."""
    append = decision_file.DecisionFile.append

    def lose(file: decision_file.DecisionFile, decision: decision_file.AckDecision) -> None:
        if when == "after":
            append(file, decision)
        opened.consumer.close()
        if when == "before":
            append(file, decision)

    with monkeypatch.context() as patch:
        patch.setattr(decision_file.DecisionFile, "append", lose)
        with pytest.raises(LostQueueError):
            opened.move(2)
    assert outputs(opened.store) == []
    assert read_decisions(opened.files, opened.path).decisions == ()
    opened.consumer = opened.store.consumer("g", "in")
    assert opened.move(2) == [0, 1]


def test_a_queue_that_is_lost_while_the_messages_are_stored_is_not_handed_out_again(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = StoreBatch.append

    def lose(batch: StoreBatch, **given: Any) -> Any:
        opened.consumer.close()
        opened.consumer = opened.store.consumer("g", "in")
        assert ("in", 0) not in opened.consumer.assignment()
        return append(batch, **given)

    with monkeypatch.context() as patch:
        patch.setattr(StoreBatch, "append", lose)
        assert opened.move(2) == [0, 1]
    opened.workers.run_all()
    assert opened.move(2) == [2, 3]
    assert outputs(opened.store) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["create", "pwrite", "sync", "rename"])
def test_a_decision_that_cannot_be_written_stores_nothing(call: str, opened: Opened) -> None:
    if call in ("pwrite", "sync"):
        opened.move()
    opened.files.plan.fail(call, path="decisions", times=1)
    with pytest.raises(StorageError, match="nothing was stored and nothing acknowledged"):
        opened.move(2)
    before = outputs(opened.store)
    opened.consumer.close()
    opened.consumer = opened.store.consumer("g", "in")
    first = len(before)
    assert opened.move(2) == [first, first + 1]
    opened.die()
    assert left(opened.path) == list(range(first + 2, 10))


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [True, False])
def test_an_interrupt_is_decided_by_the_log(
    is_stored: bool, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = StoreBatch.append

    def interrupted(batch: StoreBatch, **given: Any) -> None:
        if is_stored:
            append(batch, **given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreBatch, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened.move(2)
    assert outputs(opened.store) == ([0, 1] if is_stored else [])
    assert len(opened.consumer.pending()) == (0 if is_stored else 2)
    opened.die()
    assert left(opened.path) == list(range(2 if is_stored else 0, 10))


@pytest.mark.slow
def test_a_store_that_another_thread_closes_meanwhile_leaves_the_outcome_open(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error said that nothing was stored: a program that repeated the transaction stored its messages twice."""
    flush = Store.flush

    def closed(store: Store) -> int:
        monkeypatch.undo()
        store.close()
        return flush(store)

    given = opened.consumer.poll(2, 0)
    monkeypatch.setattr(Store, "flush", closed)
    with pytest.raises(StoreClosedError) as raised, opened.store.transaction() as tx:
        tx.ack(given)
        tx.put_many([Message("out", message.body) for message in given])
    assert "is known when the store is opened again" in raised.value.__notes__[0]
    assert left(opened.path) == list(range(2, 10))


@pytest.mark.slow
def test_a_failed_flush_leaves_the_outcome_open_until_the_next_opening(opened: Opened) -> None:
    opened.move()
    opened.files.plan.fail("sync", path="commitlog")
    given = opened.consumer.poll(2, 0)
    with pytest.raises(StoreFailedError) as raised, opened.store.transaction() as tx:
        tx.ack(given)
        tx.put("out", b"1")
        tx.put("out", b"2")
    assert "is known when the store is opened again" in raised.value.__notes__[0]
    assert opened.deciding.undecided == 1
    assert undecided_in(opened.store) == [{"open": 1}]
    # Neither answered nor handed out again: another owner would not know.
    assert {each.state for each in given} == {BOUND}
    opened.consumer.close()
    with opened.store.consumer("g", "in") as other:
        assert other.assignment() == [("%RETRY%g", 0)]
    opened.die()
    assert left(opened.path) in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [3, 4, 5, 6, 7, 8, 9])


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pwrite", "sync"])
def test_the_next_owner_gets_what_a_journal_could_not_take(call: str, opened: Opened) -> None:
    opened.move()
    # The first write is that of what was handed out.
    opened.files.plan.fail(call, path="0.journal", times=1, after=int(call == "pwrite"))
    assert opened.move(2) == [1, 2]
    # The step of the writer, and of the consumer.
    for _ in range(3):
        opened.deciding._is_stale = True
        opened.workers.run_all()
    assert opened.move(1) == [3]
    opened.die()
    assert left(opened.path) == [4, 5, 6, 7, 8, 9]


@pytest.mark.slow
def test_a_kill_before_the_acknowledgements(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.move()

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Deciding, "_carry_out", die)
        with pytest.raises(SystemExit):
            opened.move(2)
    opened.die()
    with penstock.open(opened.path, read_only=True) as reader:
        assert undecided_in(reader) == [{"open": 1}], "of two in the file"
    # A member elsewhere does not get the queue before the store was open for writing.
    with (
        penstock.open(opened.path, read_only=True) as reader,
        reader.consumer("g", "in") as elsewhere,
    ):
        assert ("in", 0) not in elsewhere.assignment()
    again = Opened(opened.path)
    assert not decision_path(again.path).exists()
    assert again.move(1) == [3]
    again.store.close()
    assert left(opened.path) == [4, 5, 6, 7, 8, 9]


@pytest.mark.slow
def test_a_seek_after_the_transaction_counts(opened: Opened) -> None:
    opened.move(3)
    opened.consumer.seek("in", offset=1)
    opened.die()
    with penstock.open(opened.path) as store, store.consumer("g", "in") as consumer:
        assert [each.queue_offset for each in consumer.poll(100, 0)] == list(range(1, 10))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "garbage", "foreign", "large"])
def test_a_broken_file_does_not_keep_the_store_from_being_opened(
    damage: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        opened.move()
    opened.die()
    path = decision_path(opened.path)
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[100] ^= 4
    elif damage == "garbage":
        raw[:] = b"x" * len(raw)
    elif damage == "foreign":
        path.unlink()
        decision_file.DecisionFile(FaultyFiles(), opened.path, 12345).replace(())
        raw = bytearray(path.read_bytes())
    else:
        raw += bytes(60 << 20)
    path.write_bytes(raw)
    with penstock.open(opened.path, read_only=True) as reader:
        parts = [(each.part, each.path) for each in reader.verify() if not each.is_note]
    # Of another store it is found when it is used.
    assert parts == ([] if damage == "foreign" else [("decisions", path)])
    with caplog.at_level(logging.ERROR):
        assert left(opened.path) == [3, 4, 5, 6, 7, 8, 9]
    assert "decisions.corrupt-1" in caplog.text
    assert path.with_name("decisions.corrupt-1").exists()
    assert not path.exists()


def test_a_store_without_transactions_has_no_file(opened: Opened) -> None:
    opened.consumer.ack(opened.consumer.poll(3, 0))
    with opened.store.transaction() as tx:
        tx.put("out", b"1")
    assert not decision_path(opened.path).exists()


@pytest.mark.slow
def test_a_retried_message_is_moved(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s") as store:
        store.put("in", b"x")
        with store.consumer("g", "in") as consumer:
            consumer.nack(consumer.poll(1), delay_level=1)
            (again,) = consumer.poll(1, 30)
            assert (again.attempt, again.topic) == (2, "in")
            with store.transaction() as tx:
                tx.ack(again)
                tx.put("out", again.body)
            assert not any(consumer.lag().values())


def test_an_ordered_queue_goes_on_after_the_transaction(opened: Opened) -> None:
    with opened.store.consumer("ordered", "in", ordered=True) as consumer:
        for number in range(3):
            (message,) = consumer.poll(5, 0)
            with opened.store.transaction() as tx:
                tx.ack(message)
                tx.put("out", message.body)
                assert not consumer.poll(5, 0)
            assert message.queue_offset == number


@pytest.mark.slow
def test_many_threads_share_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_file, "FULL_BYTES", 1024)
    with penstock.open(tmp_path / "s") as store:
        store.put_many([Message("in", b"%d" % n, queue=n % 3) for n in range(60)])
        with store.consumer("g", "in") as consumer:

            def move() -> None:
                while given := consumer.poll(1, 0):
                    with store.transaction() as tx:
                        tx.ack(given)
                        tx.put("out", given[0].body)

            threads = [threading.Thread(target=move) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert not any(consumer.lag().values())
        assert outputs(store) == list(range(60))
