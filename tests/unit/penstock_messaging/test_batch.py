"""Transactions: messages that are stored together at the end of a block, or not at all."""

import threading
from pathlib import Path

import pytest

from penstock import Message
from penstock.errors import (
    ConfigError,
    MessageError,
    ReadOnlyError,
    StoreClosedError,
    TransactionEndedError,
)
from penstock.store.store import Store
from penstock.testing import open_store
from penstock_messaging.transactions.batch import BatchTransaction


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "s")


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [message.body for message in store.scan(topic)]


def test_messages_are_stored_together_when_the_block_ends(store: Store) -> None:
    with store:
        with store.transaction() as tx:
            assert isinstance(tx, BatchTransaction)
            tx.put("t", b"1", tag="a", keys=["k"], properties={"p": "v"}, flag=3)
            tx.put_many([Message("t", b"2"), Message("u", b"3")])
            assert bodies(store) == []
            assert len(tx.receipts) == 0
        assert [each.queue_offset for each in tx.receipts] == [0, 1, 0]
        assert bodies(store) == [b"1", b"2"]
        first = next(store.scan("t"))
        assert (first.tag, first.keys, first.properties, first.flag) == ("a", ("k",), {"p": "v"}, 3)
        with store.transaction():
            """Nothing is stored."""
        assert bodies(store) == [b"1", b"2"]


def test_an_exception_in_the_block_drops_all(store: Store) -> None:
    with store:
        for error in (KeyError, KeyboardInterrupt):
            with pytest.raises(error), store.transaction() as tx:
                tx.put("t", b"1")
                raise error
            assert tx.receipts == ()
        assert store.max_offset("t") == 0


def test_a_refused_message_is_an_error_at_the_call_and_the_others_are_stored(store: Store) -> None:
    with store:
        with store.transaction() as tx:
            tx.put("t", b"1")
            with pytest.raises(MessageError):
                tx.put("a/b", b"")
            with pytest.raises(MessageError, match="prepared_offset"):
                tx.put_many([Message("t", b"", prepared_offset=5)])
            with pytest.raises(MessageError) as caught:
                tx.put_many([Message("t", b"kept out"), Message("t", b"", queue=-1)])
            assert "message 1 of the call" in caught.value.__notes__[0]
            with pytest.raises(TypeError):
                tx.put("t", b"", colour="red")  # type: ignore[call-arg]
        assert bodies(store) == [b"1"]


def test_delays_keys_and_queues_in_turn_work_as_in_a_put(store: Store) -> None:
    with store:
        with store.transaction() as tx:
            tx.put("t", b"late", delay_level=18)
            tx.put("t", b"late", delay_ms=60_000)
            tx.put("t", b"late", deliver_at=1_700_000_060_000)
            for _ in range(2):
                tx.put("t", b"keyed", partition_key="k")
                tx.put("t", b"in turn", queue=None)
        topics = store.topics()
        assert {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"} <= set(topics)
        queues = [each.queue for each in tx.receipts]
        assert queues[3] == queues[5]
        assert queues[4] != queues[6]
        assert bodies(store).count(b"late") == 0


def test_a_transaction_is_used_only_inside_of_its_block(store: Store) -> None:
    with store:
        tx = store.transaction()
        with pytest.raises(TransactionEndedError, match="put is refused"):
            tx.put("t", b"")
        with tx:
            tx.put("t", b"1")
            kept = tx.put
            with pytest.raises(TransactionEndedError), tx:
                pass
        for call in (
            lambda: tx.put("t", b""),
            lambda: kept("t", b""),
            lambda: tx.put_many([]),
            tx.__enter__,
        ):
            with pytest.raises(TransactionEndedError, match="nothing was stored"):
                call()
        assert bodies(store) == [b"1"]


def test_only_the_writer_has_transactions(store: Store, tmp_path: Path) -> None:
    with store, open_store(tmp_path / "s", read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.transaction()
    with pytest.raises(StoreClosedError):
        store.transaction()
    with open_store(tmp_path / "n", extensions=[]) as other, pytest.raises(ConfigError):
        other.transaction()


def test_a_store_that_is_closed_in_the_block_stores_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreClosedError), store.transaction() as tx:
        tx.put("t", b"1")
        store.close()
    with open_store(tmp_path / "s") as again:
        assert bodies(again) == []


def test_threads_share_a_transaction_and_have_their_own(store: Store) -> None:
    def fill(shared: BatchTransaction, name: int) -> None:
        with store.transaction() as own:
            for number in range(100):
                shared.put("shared", b"%d" % number)
                own.put("own", b"%d %d" % (name, number))

    with store:
        with store.transaction() as tx:
            threads = [threading.Thread(target=fill, args=(tx, name)) for name in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        assert len(bodies(store, "shared")) == 400
        found = [tuple(map(int, body.split())) for body in bodies(store, "own")]
        # Each of them lies in one piece.
        assert [number for _, number in found] == [*range(100)] * 4
