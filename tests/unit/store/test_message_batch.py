"""A batch to which messages are added one by one."""

import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import Message, StoredMessage
from penstock.errors import (
    MessageError,
    MessageTooLargeError,
    StoreClosedError,
    TopicError,
    TransactionEndedError,
)
from penstock.store.message_batch import StoreBatch
from penstock.store.store import Store
from penstock.testing import ManualClock, open_store

SEGMENT = 16384


@pytest.fixture
def store(tmp_path: Path) -> Store:
    given: dict[str, Any] = {"geometry.segment_bytes": SEGMENT}
    return open_store(tmp_path / "s", **given)


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [message.body for message in store.scan(topic)]


def test_messages_are_stored_when_the_batch_is_appended(store: Store) -> None:
    with store:
        batch = store.message_batch()
        assert isinstance(batch, StoreBatch)
        batch.add(Message("t", b"1"))
        batch.add_many([Message("t", b"2"), Message("u", b"3", delay_level=1)])
        assert len(batch) == 3
        assert bodies(store) == []
        receipts = batch.append()
        assert [each.queue_offset for each in receipts] == [0, 1, 0]
        assert bodies(store) == [b"1", b"2"]
        assert receipts[-1].log_offset + receipts[-1].size == batch_end(store)
        with pytest.raises(TransactionEndedError, match="put is refused"):
            batch.add(Message("t", b"4"))
        with pytest.raises(TransactionEndedError, match="put is refused"):
            batch.put("t", b"4")
        with pytest.raises(TransactionEndedError, match="put_many is refused"):
            batch.add_many([Message("t", b"4")])


def options(message: Message) -> dict[str, Any]:
    names = (
        "queue",
        "tag",
        "keys",
        "properties",
        "flag",
        "delay_level",
        "wait",
        "born_time_ms",
        "born_host",
    )
    return {name: getattr(message, name) for name in names}


def batch_end(store: Store) -> int:
    end: int = store.stats()["log_end_offset"]
    return end


def test_a_refused_message_leaves_the_batch_as_it_was(store: Store) -> None:
    with store:
        batch = store.message_batch()
        batch.add(Message("t", b"1"))
        size = batch.size
        wrong: Any = "no"
        refused = [
            Message("a/b", b""), Message("t", b"", queue=-1), Message("t", wrong), Message("t", b"", wait=wrong),
            Message("t", b"x" * SEGMENT), Message("t", b"", delay_level=-1), Message("t", b"", prepared_offset=-5),
            Message("t", b"", prepared_offset=5), Message("t", b"", flag=1 << 40), Message("t", b"", born_host="nowhere"),
        ]  # fmt: skip
        for message in refused:
            with pytest.raises(MessageError):
                batch.add(message)
            with pytest.raises(MessageError):
                batch.add_many([Message("t", b"kept out"), message])
            if not message.prepared_offset:
                with pytest.raises(MessageError):
                    batch.put(message.topic, message.body, **options(message))
        with pytest.raises(ValueError, match="a list of"):
            batch.add_many(b"text")  # type: ignore[arg-type]
        assert (len(batch), batch.size) == (1, size)
        batch.append()
        assert bodies(store) == [b"1"]


def test_a_batch_that_no_segment_holds_is_refused_with_both_sizes(store: Store) -> None:
    with store:
        batch = store.message_batch()
        for _ in range(2):
            batch.add(Message("t", b"x" * 7000))
        with pytest.raises(MessageTooLargeError, match=f"the limit is {SEGMENT - 8}") as caught:
            batch.add(Message("t", b"x" * 7000))
        assert caught.value.size > caught.value.limit == SEGMENT - 8
        assert "geometry.segment_bytes" in str(caught.value)
        store.put("t", b"y" * 9000)
        # The rest of the first segment is too short.
        assert [each.log_offset >= SEGMENT for each in batch.append()] == [True, True]


def test_a_queue_that_was_deleted_meanwhile_is_checked_again(store: Store) -> None:
    with store:
        store.create_topic("t", queues=1)
        batch = store.message_batch()
        batch.add(Message("t", b"1"))
        store.alter_topic("t", perm=4)
        with pytest.raises(TopicError):
            batch.append()
        assert bodies(store) == []


def test_a_message_is_born_when_it_is_added(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "s", clock=clock) as store:
        batch = store.message_batch()
        clock.now_ms += 1000
        batch.add(Message("t", b"1"))
        clock.now_ms += 1000
        batch.append()
        (message,) = store.scan("t")
        assert message.store_time_ms - message.born_time_ms == 1000


def test_marks_are_not_shown_and_not_copied(store: Store) -> None:
    with store:
        batch = store.message_batch()
        batch.add_many([Message("t", b"1"), Message("t", b"2")])
        batch.append(decision=3)
        found = list(store.scan("t"))
        assert [message.prepared_offset for message in found] == [0, 0]
        table = store.to_arrow("t", columns=["prepared_offset"])
        assert table.column(0).to_pylist() == [0, 0]
        with pytest.raises(MessageError, match="prepared_offset"):
            store.put_copies([(Message("t", b"", prepared_offset=-1), b"")])
        with pytest.raises(MessageError, match="prepared_offset"):
            store.put_many([Message("t", b"", prepared_offset=9)] * 2, atomic=True)


def test_a_closed_store_takes_no_batch(store: Store) -> None:
    batch = store.message_batch()
    batch.add(Message("t", b"1"))
    store.close()
    with pytest.raises(StoreClosedError):
        batch.add(Message("t", b"2"))
    with pytest.raises(StoreClosedError):
        batch.append()


def test_a_put_stores_what_the_same_message_does(store: Store) -> None:
    odd: Any = bytearray(b"3")
    made = [
        Message("t", b"1"), Message("t", b"2", queue=2, tag="a", keys=("k", "l"), flag=-3), Message("u", odd),
        Message("t", b"4", properties={"p": "v"}, born_time_ms=5), Message("t", b"5", born_host="10.0.0.1:9"),
        Message("t", b"6", delay_level=2), Message("t", b"7", delay_ms=60_000), Message("t", b"8", queue=None),
        Message("t", b"9", deliver_at=1_700_000_060_000), Message("t", b"10", partition_key="k"),
    ]  # fmt: skip
    with store:
        one, other = store.message_batch(), store.message_batch()
        for message in made:
            one.add(message)
            other.put(
                message.topic, message.body, **options(message), delay_ms=message.delay_ms,
                deliver_at=message.deliver_at, partition_key=message.partition_key,
            )  # fmt: skip
        assert [each.size for each in one.append()] == [each.size for each in other.append()]
        for topic, queues in store.topics().items():
            found = [plain(each) for queue in queues for each in store.scan(topic, queue)]
            assert {found.count(each) for each in found} == {2}


def plain(message: StoredMessage) -> tuple[object, ...]:
    # What differs: which queue is next in turn, and when the time of a delay begins.
    given = {k: v for k, v in message.all_properties.items() if not k.startswith(("TIMER", "UNIQ"))}
    return message.body, message.tag, message.keys, given, message.flag, message.born_host


def test_what_another_thread_puts_survives_a_refused_call(store: Store) -> None:
    """A call that is refused removes what it has added: meanwhile, no other thread may add."""
    with store:
        batch, others = store.message_batch(), list[threading.Thread]()

        class Putting:
            """A number whose check lets another thread put."""

            def __index__(self) -> int:
                others.append(threading.Thread(target=batch.put, args=("t", b"kept")))
                others[-1].start()
                others[-1].join(0.05)
                raise TypeError

        wrong: Any = Putting()
        with pytest.raises(MessageError):
            batch.add_many([Message("t", b"removed"), Message("t", b"", flag=wrong)])
        for each in others:
            each.join()
        batch.append()
        assert bodies(store) == [b"kept"]
