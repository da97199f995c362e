"""A batch to which messages are added one by one."""

from pathlib import Path
from typing import Any

import pytest

from penstock import Message
from penstock.errors import MessageError, MessageTooLargeError, StoreClosedError, TopicError
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
        with pytest.raises(BufferError):
            batch.add(Message("t", b"4"))


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
        ]  # fmt: skip
        for message in refused:
            with pytest.raises(MessageError):
                batch.add(message)
            with pytest.raises(MessageError):
                batch.add_many([Message("t", b"kept out"), message])
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
