"""Transactions: messages that are stored together, and the acknowledgements of others, both or neither, whatever fails."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.shop import KillableFiles, Shop

import penstock
from penstock import LostQueueError, Message, StorageError, Store, StoreFailedError, errors
from penstock.contracts import Consumer
from penstock.files import Files
from penstock.format.hashes import crc32c
from penstock.store.batches import StoreBatch
from penstock.testing import FaultyFiles, InlineWorkers, ManualClock, open_store
from penstock_messaging.consuming.consumed_message import BOUND, DONE
from penstock_messaging.groups.fold import Fold
from penstock_messaging.groups.position import GroupProgress
from penstock_messaging.transactions import decision_file
from penstock_messaging.transactions.decided_acks import (
    DecidedElsewhere,
    summary_of,
)
from penstock_messaging.transactions.decision_file import (
    AckDecision,
    DecisionFile,
    FoundDecisions,
    QueueAcks,
    decision_path,
    parse_decisions,
    read_decisions,
)

# --- messages


def test_messages_are_stored_together_when_the_block_ends_without_refused_ones(shop: Shop) -> None:
    with shop.store.transaction() as tx:
        tx.put("t", b"1", queue=0, tag="a", keys=["k"], properties={"p": "v"}, flag=3)
        with pytest.raises(errors.MessageError):
            tx.put("a/b", b"", queue=0)
        with pytest.raises(errors.MessageError, match="prepared_offset"):
            tx.put_many([Message("t", b"", queue=0, prepared_offset=5)])
        with pytest.raises(errors.MessageError) as caught:
            tx.put_many([Message("t", b"kept out", queue=0), Message("t", b"", queue=-1)])
        assert "message 1 of the call" in caught.value.__notes__[0]
        with pytest.raises(TypeError):
            tx.put("t", b"", queue=0, colour="red")  # type: ignore[call-arg]
        tx.put_many([Message("t", b"2", queue=0), Message("u", b"3", queue=0)])
        assert (shop.bodies("t"), len(tx.receipts)) == ([], 0)
    assert [each.queue_offset for each in tx.receipts] == [0, 1, 0]
    assert shop.bodies("t") == [b"1", b"2"]
    first = next(shop.store.scan("t"))
    assert (first.tag, first.keys, first.properties, first.flag) == ("a", ("k",), {"p": "v"}, 3)
    with shop.store.transaction():
        """Nothing is stored."""
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error), shop.store.transaction() as tx:
            tx.put("t", b"1", queue=0)
            raise error
        assert tx.receipts == ()
    with pytest.raises(errors.StoreClosedError), shop.store.transaction() as tx:
        tx.put("t", b"1", queue=0)
        shop.close()
    assert shop.bodies("t") == [b"1", b"2"]


def test_delays_keys_and_queues_in_turn_work_as_in_a_put(shop: Shop) -> None:
    with shop.store.transaction() as tx:
        tx.put("t", b"late", queue=0, delay_level=18)
        tx.put("t", b"late", queue=0, delay=60)
        tx.put("t", b"late", queue=0, deliver_at=1700000060)
        for _ in range(2):
            tx.put("t", b"keyed", partition_key="k")
            tx.put("t", b"in turn", queue=None)
    assert {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"} <= set(shop.store.topics(system=True))
    queues = [each.queue for each in tx.receipts]
    assert queues[3] == queues[5]
    assert queues[4] != queues[6]
    assert b"late" not in shop.bodies("t")


def test_a_transaction_is_used_only_inside_of_its_block_and_by_the_writer(shop: Shop) -> None:
    tx = shop.store.transaction()
    with pytest.raises(errors.TransactionEndedError, match="put is refused"):
        tx.put("t", b"", queue=0)
    with tx:
        tx.put("t", b"1", queue=0)
        kept = tx.put
        with pytest.raises(errors.TransactionEndedError), tx:
            pass
    for call in (lambda: kept("t", b""), lambda: tx.put_many([]), tx.__enter__):
        with pytest.raises(errors.TransactionEndedError, match="nothing was stored"):
            call()
    assert shop.bodies("t") == [b"1"]
    with open_store(shop.root, read_only=True) as reader, pytest.raises(errors.ReadOnlyError):
        reader.transaction()
    plain = open_store(shop.root.with_name("plain"), extensions=[])
    with plain, pytest.raises(errors.ConfigError):
        plain.transaction()
    with pytest.raises(errors.StoreClosedError):
        plain.transaction()


# --- and acknowledgements


class Opened:
    """A store whose files can fail, with a consumer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files, self.workers = KillableFiles(), InlineWorkers()
        self.store: Store = open_store(
            path, files=self.files, clock=ManualClock(), spawn=self.workers, retention=[]
        )
        if "in" not in self.store.topics():
            self.store.put_many([Message("in", b"%d" % n, queue=0) for n in range(10)])
        self.consumer: Consumer = self.store.consumer("g", "in")

    def move(self, count: int = 1) -> list[int]:
        """Move messages in one transaction; return their offsets."""
        given = self.consumer.poll(count, 0)
        with self.store.transaction() as tx:
            tx.ack(given)
            for message in given:
                tx.put("out", message.body, queue=0)
        return [each.queue_offset for each in given]

    def join_again(self) -> None:
        self.consumer.close()
        self.consumer = self.store.consumer("g", "in")

    @property
    def outputs(self) -> list[int]:
        return outputs(self.store)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "store")
    yield made
    if not made.files.plan.is_dead:
        made.store.close()


def outputs(store: Store) -> list[int]:
    known = "out" in store.topics()
    return sorted(int(message.body) for message in store.scan("out")) if known else []


def left(path: Path) -> list[int]:
    """Open the store again, and return what a consumer gets."""
    with penstock.open(path) as store, store.consumer("g", "in") as consumer:
        found = [each.queue_offset for each in consumer.poll(100, 0)]
        assert sorted([*outputs(store), *found]) == list(range(10))
        return found


def undecided_in(store: Store) -> list[object]:
    """Return what `penstock stat` says about transactions."""
    return [line.value for line in store.lowlevel.summary() if line.key == "undecided"]


def test_both_are_done(opened: Opened) -> None:
    opened.consumer.ack(opened.consumer.poll(1, 0))
    with opened.store.transaction() as tx:
        tx.put("elsewhere", b"1", queue=0)
    path = decision_path(opened.path)
    assert not path.exists(), "nothing is to be decided"
    given = opened.consumer.poll(3, 0)
    with opened.store.transaction() as tx:
        tx.ack(given[0])
        tx.ack(given[1:])
        tx.put("out", b"0", queue=0)
        tx.put("elsewhere", b"1", queue=0, delay_level=1)
        assert "out" not in opened.store.topics()
    assert [each.queue_offset for each in tx.receipts] == [0, 0]
    assert {each.state for each in given} == {DONE}
    assert undecided_in(opened.store) == []
    assert len(read_decisions(opened.files, opened.path).decisions) == 1
    given = opened.consumer.poll(1, 0)
    assert [each.queue_offset for each in given] == [4]
    with opened.store.transaction() as tx:
        tx.ack(given)
    assert (tx.receipts, given[0].state) == ((), DONE)
    opened.consumer.close()
    opened.store.close()
    assert not path.exists()


@pytest.mark.parametrize("way", ["close", "seek"])
def test_a_queue_that_is_lost_in_the_block_stores_nothing(opened: Opened, way: str) -> None:
    with pytest.raises(LostQueueError), opened.store.transaction() as tx:
        tx.ack(opened.consumer.poll(3, 0))
        tx.put("out", b"0", queue=0)
        if way == "close":
            opened.consumer.close()
        else:
            opened.consumer.seek("in", offset=5)
    assert opened.store.topics() == {"in": [0]}
    if way == "close":
        opened.join_again()
    assert opened.move(1) == [0 if way == "close" else 5]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_queue_that_is_lost_while_the_decision_is_written_stores_nothing(
    when: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next owner had taken it without a look at the decision, and got messages whose outputs were stored."""
    append = DecisionFile.append

    def lose(file: DecisionFile, decision: AckDecision) -> None:
        if when == "after":
            append(file, decision)
        opened.consumer.close()
        if when == "before":
            append(file, decision)

    with monkeypatch.context() as patch:
        patch.setattr(DecisionFile, "append", lose)
        with pytest.raises(LostQueueError):
            opened.move(2)
    assert opened.outputs == []
    assert read_decisions(opened.files, opened.path).decisions == ()
    opened.join_again()
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
    assert opened.outputs == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["create", "pwrite", "sync", "rename"])
def test_a_decision_that_cannot_be_written_stores_nothing(call: str, opened: Opened) -> None:
    if call in ("pwrite", "sync"):
        opened.move()
    first = len(opened.outputs)
    opened.files.plan.fail(call, path="decisions", times=1)
    with pytest.raises(StorageError, match="nothing was stored and nothing acknowledged"):
        opened.move(2)
    opened.join_again()
    assert opened.move(2) == [first, first + 1]
    opened.files.die()
    assert left(opened.path) == list(range(first + 2, 10))


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
    with pytest.raises(errors.StoreClosedError) as raised, opened.store.transaction() as tx:
        tx.ack(given)
        tx.put_many([Message("out", message.body, queue=0) for message in given])
    assert "is known when the store is opened again" in raised.value.__notes__[0]
    assert left(opened.path) == list(range(2, 10))


@pytest.mark.slow
def test_a_failed_flush_leaves_the_outcome_open_until_the_next_opening(opened: Opened) -> None:
    opened.move()
    opened.files.plan.fail("sync", path="commitlog")
    given = opened.consumer.poll(2, 0)
    with pytest.raises(StoreFailedError) as raised, opened.store.transaction() as tx:
        tx.ack(given)
        tx.put("out", b"1", queue=0)
        tx.put("out", b"2", queue=0)
    assert "is known when the store is opened again" in raised.value.__notes__[0]
    assert undecided_in(opened.store) == [{"open": 1}]
    # Neither answered nor handed out again: another owner would not know.
    assert {each.state for each in given} == {BOUND}
    opened.consumer.close()
    with opened.store.consumer("g", "in") as other:
        assert other.assignment() == [("%RETRY%g", 0)]
    opened.files.die()
    with penstock.open(opened.path, read_only=True) as reader:
        assert undecided_in(reader) == [{"open": 1}], "of two in the file"
        # A member elsewhere does not get the queue before the store was open for writing.
        with reader.consumer("g", "in") as elsewhere:
            assert ("in", 0) not in elsewhere.assignment()
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
        opened.workers.run_all()
    assert opened.move(1) == [3]
    opened.files.die()
    assert left(opened.path) == [4, 5, 6, 7, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "garbage", "foreign", "large"])
def test_a_broken_file_does_not_keep_the_store_from_being_opened(
    damage: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        opened.move()
    opened.files.die()
    path = decision_path(opened.path)
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[100] ^= 4
    elif damage == "garbage":
        raw[:] = b"x" * len(raw)
    elif damage == "large":
        raw += bytes(60 << 20)
    path.write_bytes(raw)
    if damage == "foreign":
        DecisionFile(FaultyFiles(), opened.path, 12345).replace(())
    with penstock.open(opened.path, read_only=True) as reader:
        parts = [(each.part, each.path) for each in reader.verify() if not each.is_note]
    # Of another store it is found when it is used.
    assert parts == ([] if damage == "foreign" else [("decisions", path)])
    with caplog.at_level(logging.ERROR):
        assert left(opened.path) == [3, 4, 5, 6, 7, 8, 9]
    assert "decisions.corrupt-1" in caplog.text
    assert path.with_name("decisions.corrupt-1").exists()
    assert not path.exists()


# --- what the next owner of a queue must know of decisions


ACKS = QueueAcks("g", "t", 0, 3, 5, 2, ((10, 12), (20, 21)))


def resolved(*acked: tuple[int, int], base: int = 0, reset: int = 0) -> GroupProgress:
    """Return a queue whose journal is the one that was decided about."""
    fold = Fold(7, 3, 5, None, base=base, acked=list(acked), reset=reset)
    return GroupProgress(fold, None, None, base, 3, 5, reset)


def test_a_reader_knows_that_the_writer_must_say_it_and_guesses_nothing(tmp_path: Path) -> None:
    elsewhere = DecidedElsewhere(Files(), tmp_path)
    assert elsewhere.ranges("g", "t", 0, resolved()) == ()
    file = DecisionFile(Files(), tmp_path, 7)
    file.replace(())
    file.append(AckDecision(1, 0, (ACKS,)))
    assert elsewhere.ranges("g", "t", 0, resolved()) is None
    assert elsewhere.ranges("g", "t", 0, resolved((0, 30))) == ()
    assert elsewhere.ranges("g", "t", 1, resolved()) == ()
    assert elsewhere.undecided(lambda *_queue: resolved()) == 1
    assert elsewhere.undecided(lambda *_queue: resolved((0, 30))) == 0
    file.drop(1)
    assert elsewhere.ranges("g", "t", 0, resolved()) == ()
    raw = bytearray(decision_path(tmp_path).read_bytes())
    raw[80] ^= 1
    decision_path(tmp_path).write_bytes(raw)
    with pytest.raises(errors.CorruptionError, match="open the store for writing"):
        elsewhere.ranges("g", "other", 0, resolved())
    (line,) = summary_of(lambda: elsewhere.undecided(lambda *_: resolved()))
    assert line.text.startswith("not known: ")
    assert line.value is None
    assert summary_of(lambda: 0) == []


# --- the file of decisions


STORE = 77


def decision(number: int, *ranges: tuple[int, int]) -> AckDecision:
    """Return a decision about two queues."""
    acks = QueueAcks("billing", "orders", 3, 1 << 32, 5, 2, ranges or ((number, number + 1),))
    more = QueueAcks("g|\u00e4", "%RETRY%g", 0, 0, 1, 0, ((0, 9),))
    return AckDecision(number, 1000 + number, (acks, more))


def begun(root: Path, files: Files | None = None) -> DecisionFile:
    """Return a new file that can be appended to."""
    made = DecisionFile(files or Files(), root, STORE)
    made.replace(())
    return made


def found(root: Path) -> list[int]:
    """Return the ids in the file, which must be in order."""
    read = read_decisions(Files(), root)
    assert (read.store, read.trouble) == (STORE, "")
    return [each.id for each in read.decisions]


def test_what_is_decided_is_read_until_it_is_dropped(tmp_path: Path) -> None:
    path = decision_path(tmp_path)
    assert read_decisions(Files(), tmp_path) == FoundDecisions()
    made = begun(tmp_path)
    size = path.stat().st_size
    long = (1 << 40, (1 << 40) + 1)
    some = [decision(number, (number, number + 3), long) for number in (1, 2, 3)]
    for each in some:
        made.append(each)
    assert path.stat().st_size == size, "an append writes no metadata"
    assert read_decisions(Files(), tmp_path) == FoundDecisions(STORE, tuple(some))
    made.drop(2)
    assert found(tmp_path) == [1, 3]
    number = 3
    while not made.is_full:
        number += 1
        made.append(decision(number))
    assert path.stat().st_size >= decision_file.FULL_BYTES
    assert found(tmp_path) == [1, 3, *range(4, number + 1)]
    made.replace([decision(50), decision(99)])
    assert [made.is_full] == [False]
    made.append(decision(200))
    assert found(tmp_path) == [50, 99, 200]
    # A corrupt one is kept for people.
    assert made.set_aside().name == "decisions.corrupt-1"
    assert not path.exists()
    made.close()
    begun(tmp_path).remove()
    assert not path.exists()
    made.remove()


def entries_of(raw: bytes) -> list[int]:
    """Return where entries begin, and the last one ends: each at a multiple of 64 bytes."""
    starts = [at for at in range(0, len(raw), 64) if raw[at + 8 : at + 10] == b'{"']
    return [*starts, len(raw.rstrip(b"\0"))]


def test_a_torn_end_is_the_end_and_a_flipped_bit_hides_nothing_else(tmp_path: Path) -> None:
    made = begun(tmp_path)
    for number in (1, 2, 3):
        made.append(decision(number))
    raw = decision_path(tmp_path).read_bytes()
    _, first, second, third, end = entries_of(raw)
    for cut in range(third, end, 3):
        for rest in (b"", bytes(len(raw) - cut)):
            read = parse_decisions(raw[:cut] + rest)
            assert ([each.id for each in read.decisions], read.trouble) == ([1, 2], ""), cut
    for position in range(first, second, 5):
        changed = bytearray(raw)
        changed[position] ^= 1 << position % 8
        read = parse_decisions(bytes(changed))
        if read.decisions == parse_decisions(raw).decisions:
            # Zeros between entries are not read.
            assert not raw[position]
            continue
        assert [each.id for each in read.decisions] == [2, 3], position
        assert "no entry" in read.trouble


def entry(text: bytes) -> bytes:
    """Return an entry with a correct CRC."""
    size = len(text).to_bytes(4, "little")
    made = size + crc32c(size + text).to_bytes(4, "little") + text
    return made + bytes(-len(made) % 64)


WRONG: list[object] = [None, -1, 1 << 70, "", "x" * 300, [], True, 1.5]
WRONG_RANGES: list[object] = [
    [[2, 2]], [[5, 1]], [[1, 3], [2, 4]], [[1, 2], [2, 3], [0, 1]], [[1]], 7, [[-1, 4]],
]  # fmt: skip


def test_hostile_entries_with_a_correct_crc_and_random_bytes_decide_nothing() -> None:
    row = ["g", "t", 0, 0, 1, 0, [[1, 2]]]
    begin = entry(b'{"store":77}')
    good = entry(json.dumps({"id": 9, "log": 0, "acks": [row]}).encode())
    rows = [[*row[:at], value, *row[at + 1 :]] for at in range(6) for value in WRONG]
    rows += [[*row[:6], ranges] for ranges in WRONG_RANGES]
    texts = [json.dumps({"id": 1, "log": 0, "acks": [wrong]}).encode() for wrong in rows]
    texts += [b"[]", b"{", b'{"id":1}', b'{"dropped":"1"}', b"[" * 100_000, b'{"store":0}', b"\xff"]
    for text in texts:
        read = parse_decisions(begin + entry(text) + good)
        assert [each.id for each in read.decisions] == [9], text
        assert read.trouble, text
    chance = Random(1)
    for _ in range(300):
        assert parse_decisions(chance.randbytes(chance.randint(1, 4000))).decisions == ()
    # Each of these positions looks like the begin of an entry of 16 MiB.
    fake = ((16 << 20).to_bytes(4, "little") + bytes(4) + b'{"').ljust(64, b"x")
    assert parse_decisions(fake * 400_000).decisions == ()


def test_nothing_is_appended_after_a_failure_nor_one_that_is_too_large(tmp_path: Path) -> None:
    files = FaultyFiles()
    made = begun(tmp_path, files)
    made.append(decision(1))
    with pytest.raises(StorageError, match="nothing was stored"):
        made.append(decision(2, *((each, each + 1) for each in range(0, 4_000_000, 2))))
    assert (made.is_open, found(tmp_path)) == (True, [1])
    for fails in ("pwrite", "sync"):
        files.plan.fail(fails, path="decisions", times=1)
        with pytest.raises(OSError, match="decisions"):
            made.append(decision(2))
        assert not made.is_open
        with pytest.raises(OSError, match="not open"):
            made.append(decision(2))
        made.replace([decision(1)])
        made.append(decision(3))
        assert found(tmp_path) == [1, 3]
