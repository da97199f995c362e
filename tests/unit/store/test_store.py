"""What a caller sees: receipts, reads, tags, keys, columns, batches, and several stores opened with one look."""

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OpenStore

import penstock
from penstock import Durability, Message, PutStatus
from penstock.errors import (
    MessageError,
    MessageTooLargeError,
    StoreClosedError,
    TransactionEndedError,
)
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store


def test_a_wrong_name_is_answered_in_the_callers_words(open_small: OpenStore) -> None:
    """Errors named classes that no user knows, and not where a call is that extensions have."""
    with open_small() as store:
        call: Any = store.scan
        with pytest.raises(TypeError, match=r"^Store\.scan\(\) got an unexpected keyword argument"):
            call("t", sinse=1)
        with pytest.raises(AttributeError, match=r"'forecast', but store\.lowlevel has it"):
            _ = store.forecast  # type: ignore[attr-defined] # so says the type checker
        with pytest.raises(
            AttributeError, match=r"'LowLevelStore' object has no attribute 'absent'$"
        ):
            _ = store.lowlevel.absent  # type: ignore[attr-defined] # as above


@pytest.mark.parametrize(
    ("flush", "durability"), [("sync", Durability.ON_DISK), ("async", Durability.ACCEPTED)]
)
def test_a_receipt_says_what_is_known(
    open_small: OpenStore, flush: str, durability: Durability
) -> None:
    with open_small(flush=flush) as store:
        receipt = store.put("t", b"x", queue=0)
        assert (receipt.status, receipt.durability) == (PutStatus.PUT_OK, durability)
        assert receipt.is_durable == (durability is Durability.ON_DISK)
        assert not store.put("t", b"x", queue=0, wait=False).is_durable
        future = store.submit("t", b"y", queue=0, tag="z")
        assert future.result(10).is_durable
        assert store.stats()["flushed_offset"] >= future.result().log_offset


def test_find_takes_words_phrases_and_unique_keys(open_small: OpenStore) -> None:
    with open_small() as store:
        store.put("t", b"1", queue=0, keys=["docs/two", "words.txt", "x"])
        store.put("t", b"2", queue=0, properties={"UNIQ_KEY": "u1"})
        for key, bodies in {"docs/two words.txt": [b"1"], "words.txt": [b"1"], "x": [b"1"], "two": [],
                            "words.txt x": [b"1"], "u1": [b"2"], "": [], " ": []}.items():  # fmt: skip
            assert [m.body for m in store.find(key, "t")] == bodies, key


def test_several_stores_are_opened_for_reading_with_one_look(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with open_store(tmp_path / name, spawn=ManualWorkers(), retention=[]) as store:
            store.put("t", name.encode(), queue=0)
    open_one = penstock.open_several(environ={})
    for name in ("a", "b"):
        with open_one(str(tmp_path / name)) as reader:
            assert reader.read_only
            assert reader.read("t", 0).messages[0].body == name.encode()


# --- batches to which messages are added one by one


SEGMENT = 16384


def test_the_calls_for_extensions_keep_the_store_open_as_long_as_they_are_in_use(tmp_path: Path) -> None:  # fmt: skip
    lowlevel = penstock.open(tmp_path / "s", environ={}).lowlevel
    gc.collect()
    lowlevel.put_copies([(Message("t", b"x", queue=0), b"")])
    spans = [penstock.QueueSpan("t", 0, 0, 1)]
    assert [m.body for m in lowlevel.lowlevel.scan_spans(spans)] == [b"x"]
    lowlevel.close()
    with pytest.raises(StoreClosedError):
        lowlevel.bounds()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    given: dict[str, Any] = {"geometry.segment_bytes": SEGMENT}
    return open_store(tmp_path / "s", **given)


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [message.body for message in store.scan(topic)]


def test_messages_are_stored_when_the_batch_is_appended(store: Store) -> None:
    with store:
        batch = store.lowlevel.message_batch()
        batch.add(Message("t", b"1", queue=0))
        batch.add_many([Message("t", b"2", queue=0), Message("u", b"3", queue=0, delay_level=1)])
        assert (len(batch), bodies(store)) == (3, [])
        receipts = batch.append()
        assert [each.queue_offset for each in receipts] == [0, 1, 0]
        assert bodies(store) == [b"1", b"2"]
        assert receipts[-1].log_offset + receipts[-1].size == store.stats()["log_end_offset"]
        with pytest.raises(TransactionEndedError, match="put is refused"):
            batch.add(Message("t", b"4", queue=0))
        with pytest.raises(TransactionEndedError, match="put is refused"):
            batch.put("t", b"4", queue=0)
        with pytest.raises(TransactionEndedError, match="put_many is refused"):
            batch.add_many([Message("t", b"4", queue=0)])


OPTIONS = (
    "queue", "tag", "keys", "properties", "flag", "delay_level", "wait", "born_time_ms", "born_host",
)  # fmt: skip


def options(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in OPTIONS}


def test_a_refused_message_leaves_the_batch_as_it_was(store: Store) -> None:
    with store:
        batch = store.lowlevel.message_batch()
        batch.add(Message("t", b"1", queue=0))
        size = batch.size
        wrong: Any = "no"
        refused = [
            Message("a/b", b"", queue=0), Message("t", b"", queue=-1), Message("t", wrong, queue=0), Message("t", b"", queue=0, wait=wrong),
            Message("t", b"x" * SEGMENT, queue=0), Message("t", b"", queue=0, delay_level=-1), Message("t", b"", queue=0, prepared_offset=-5),
            Message("t", b"", queue=0, prepared_offset=5), Message("t", b"", queue=0, flag=1 << 40), Message("t", b"", queue=0, born_host="nowhere"),
        ]  # fmt: skip
        for message in refused:
            with pytest.raises(MessageError):
                batch.add(message)
            with pytest.raises(MessageError):
                batch.add_many([Message("t", b"kept out", queue=0), message])
            if not message.prepared_offset:
                with pytest.raises(MessageError):
                    batch.put(message.topic, message.body, **options(message))
        with pytest.raises(ValueError, match="a list of"):
            batch.add_many(b"text")  # type: ignore[arg-type]
        assert (len(batch), batch.size) == (1, size)
        batch.append()
        assert bodies(store) == [b"1"]


def test_a_copy_has_its_own_addresses_and_no_number_that_is_none(store: Store) -> None:
    """A message of a store with other addresses could not be copied by its sys_flag: a bare ValueError."""
    numbers: list[Any] = [None, "1", b"", object(), np.uint64(2**64 - 1), -1]
    with store:
        for number in numbers:
            with pytest.raises(MessageError):
                store.lowlevel.put_copies(
                    [(Message("t", b"", queue=0, prepared_offset=number), b"")]
                )
        store.lowlevel.put_copies([(Message("t", b"", queue=0, sys_flag=0x39), b"")])
        assert [message.sys_flag for message in store.scan("t")] == [0x9]


def test_a_batch_that_no_segment_holds_is_refused_with_both_sizes(store: Store) -> None:
    with store:
        batch = store.lowlevel.message_batch()
        for _ in range(2):
            batch.add(Message("t", b"x" * 7000, queue=0))
        with pytest.raises(MessageTooLargeError, match=f"the limit is {SEGMENT - 8}") as caught:
            batch.add(Message("t", b"x" * 7000, queue=0))
        assert caught.value.size > caught.value.limit == SEGMENT - 8
        assert "geometry.segment_bytes" in str(caught.value)
        store.put("t", b"y" * 9000, queue=0)
        # The rest of the first segment is too short.
        assert [each.log_offset >= SEGMENT for each in batch.append()] == [True, True]


def test_what_another_thread_puts_survives_a_refused_call(store: Store) -> None:
    """A call that is refused removes what it has added: meanwhile, no other thread may add."""
    with store:
        batch, others = store.lowlevel.message_batch(), list[threading.Thread]()

        class Putting:
            """A number whose check lets another thread put."""

            def __index__(self) -> int:
                others.append(threading.Thread(target=batch.put, args=("t", b"kept")))
                others[-1].start()
                others[-1].join(0.05)
                raise TypeError

        wrong: Any = Putting()
        with pytest.raises(MessageError):
            batch.add_many(
                [Message("t", b"removed", queue=0), Message("t", b"", queue=0, flag=wrong)]
            )
        for each in others:
            each.join()
        batch.append()
        assert bodies(store) == [b"kept"]
