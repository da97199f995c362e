"""Whatever Python code runs while a message is put, it runs before the record begins, or is refused."""

import enum
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import SMALL

import penstock
from penstock import Message, Receipt
from penstock.contracts import SegmentChannel
from penstock.errors import BusyError, MessageError, PenstockError, QueueError, StoreClosedError
from penstock.files import File
from penstock.format.record import decode_record
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store
from penstock_alloc.file_writer import FileChannel, FileWriter


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "s", spawn=ManualWorkers(), alloc="on-demand") as store:
        yield store


class Index:
    """A whole number that does something when it is asked for."""

    def __init__(self, number: int, does: Callable[[], object]) -> None:
        self._number, self._does = number, does

    def __index__(self) -> int:
        self._does()
        return self._number


class Topic(enum.StrEnum):
    ORDERS = "orders"


def put_until_the_segment_is_full(store: Store) -> None:
    room = SMALL["geometry.segment_bytes"]
    while store._engine.log.end_offset % room < room - 300:  # type: ignore[union-attr] # it is open
        store.put("fill", b"x" * 100)


@pytest.mark.parametrize("name", ["flag", "born_time_ms", "queue"])
def test_a_number_that_puts_another_message_when_it_is_asked_for(name: str, store: Store) -> None:
    """In a first prototype the second record ran 1,454 bytes beyond the segment."""
    put_until_the_segment_is_full(store)
    inner: list[Receipt] = []
    number: Any = Index(3, lambda: inner.append(store.put("inner", b"y" * 1000)))
    given: Any = {name: number}
    receipt = store.put("outer", b"z" * 200, **given)
    assert inner[0].log_offset < receipt.log_offset
    assert [m.body for m in store.scan("outer")] == [b"z" * 200]
    assert not list(store.verify())


@pytest.mark.parametrize("number", [3.9, True, "3", None, 1 << 80, -1 << 80])
@pytest.mark.parametrize("name", ["flag", "queue", "born_time_ms", "reconsume_times"])
def test_what_is_no_number_of_its_field_is_refused_by_every_way_in(
    name: str, number: Any, store: Store
) -> None:
    # None stands for the time of the put, and for the next queue in turn.
    if name in ("born_time_ms", "queue") and number is None:
        return
    given: Any = {name: number}
    if name != "reconsume_times":
        with pytest.raises((MessageError, QueueError)):
            store.put("t", b"x", **given)
    with pytest.raises((MessageError, QueueError)):
        store.put_many([Message("t", b"x", **given)])
    assert store.max_offset("t") == 0


@pytest.mark.parametrize("number", [np.int8(3), np.uint64(3), np.int32(3)])
def test_every_type_of_whole_number_will_do(number: Any, store: Store) -> None:
    store.put("t", b"x", queue=number, flag=number, born_time_ms=number)
    store.put_many([Message("t", b"x", queue=number, flag=number, born_time_ms=number)])
    assert [(m.queue, m.flag, m.born_time_ms) for m in store.scan("t")] == [(3, 3, 3)] * 2


def test_texts_may_be_of_a_subclass(store: Store) -> None:
    word = np.str_("créé")
    for _ in range(2):
        store.put(Topic.ORDERS, b"x", tag=word, keys=[word], properties={"p": word})
        store.put_many([Message(Topic.ORDERS, b"x", tag=word, keys=[word])])
    found = list(store.scan("orders"))
    assert [(m.topic, m.tag, m.keys) for m in found] == [("orders", "créé", ("créé",))] * 4
    assert found[0].properties == {"p": "créé"}
    assert len(store.find("orders", "créé")) == 4


@pytest.mark.slow
def test_more_queues_than_any_table_begins_with(store: Store) -> None:
    for queue in range(1030):
        assert store.put("t", b"x", queue=queue).queue_offset == 0
    store.put_many([Message("t", b"x", queue=queue) for queue in range(1030)])
    assert [store.max_offset("t", queue) for queue in (0, 512, 1029)] == [2, 2, 2]


@pytest.mark.slow
def test_keys_that_are_cleared_while_the_lock_is_waited_for(store: Store) -> None:
    """The bytes of another text went into the log."""
    lock = store._engine.log.lock  # type: ignore[union-attr] # it is open
    words = "a key that is long enough to be freed at once"
    keys = [words[:]]
    lock.acquire()
    thread = threading.Thread(target=lambda: store.put("t", b"x", keys=keys))
    thread.start()
    while not lock.waits:
        pass
    keys.clear()
    gc.collect()
    lock.release()
    thread.join()
    assert [m.keys for m in store.scan("t")] == [tuple(words.split())]


class ReentrantChannel(FileChannel):
    """Does something within a write, as a signal handler or a finaliser may."""

    does: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def write(self, position: int, data: Any) -> None:
        type(self).does()
        super().write(position, data)


class ReentrantWriter(FileWriter):
    name: ClassVar[str] = "under-test"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return ReentrantChannel(file, capacity)


@pytest.mark.parametrize("way", ["put", "put_many", "put_arrow"])
def test_an_append_within_an_append_of_the_same_thread_is_refused(way: str, tmp_path: Path) -> None:
    ways: dict[str, Callable[[], object]] = {
        "put": lambda: opened[0].put("t", b"inner"),
        "put_many": lambda: opened[0].put_many([Message("t", b"inner")] * 3),
        "put_arrow": lambda: opened[0].put_arrow(pa.table({"topic": ["t"], "body": [b"inner"]})),
    }
    refused: list[BaseException] = []
    opened: list[Store] = []

    def put() -> None:
        try:
            ways[way]()
        except PenstockError as error:
            refused.append(error)

    with open_store(
        tmp_path / "s", spawn=ManualWorkers(), strategies=[ReentrantWriter], write="under-test"
    ) as store:
        opened.append(store)  # fmt: skip
        ReentrantChannel.does = staticmethod(put)
        try:
            for outer in ways.values():
                outer()
        finally:
            ReentrantChannel.does = staticmethod(lambda: None)
        assert [type(error) for error in refused] == [BusyError] * 3
        assert len(list(opened[0].scan("t"))) == 5
        assert not list(opened[0].verify())


def test_a_finaliser_that_puts(store: Store) -> None:
    class Last:
        pass

    put: list[Receipt] = []
    last = Last()
    weakref.finalize(last, lambda: put.append(store.put("t", b"from a finaliser")))
    body: Any = [last]
    del last
    body.clear()
    assert len(put) == 1
    store.put("t", b"after it")
    assert [m.body for m in store.scan("t")] == [b"from a finaliser", b"after it"]


def test_a_closed_store_is_refused_however_it_is_put_to(tmp_path: Path) -> None:
    small: dict[str, Any] = {**SMALL}
    store = penstock.open(tmp_path / "s", environ={}, **small)
    bound = store.put
    store.put("t", b"x")
    store.close()
    for put in (store.put, bound):
        with pytest.raises(StoreClosedError):
            put("t", b"x")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["put", "put_many"])
def test_nothing_is_left_behind_by_many_puts(way: str, tmp_path: Path) -> None:
    """References of whatever is handed in, and memory that grows with the number of puts."""
    with open_store(tmp_path / "s", spawn=ManualWorkers(), retention=[]) as store:
        topic, body, key, tag = "a topic", b"a body" * 9, "a key!", "a tag!"
        message = Message(topic, body, keys=(key,), tag=tag, properties={"a": "b"})

        def some(count: int) -> None:
            for _ in range(count):
                if way == "put":
                    store.put(topic, body, keys=[key], tag=tag, properties={"a": "b"})
                else:
                    store.put_many([message] * 3)[1]

        some(100)
        things = (topic, body, key, tag, message)
        gc.collect()
        before = [sys.getrefcount(thing) for thing in things]
        blocks = sys.getallocatedblocks()
        some(20_000)
        gc.collect()
        assert [sys.getrefcount(thing) for thing in things] == before
        assert sys.getallocatedblocks() - blocks < 5_000


def test_receipts_and_messages_are_values(store: Store) -> None:
    one, other = store.put_many([Message("t", b"x", queue=2), Message("t", b"y", queue=2)])
    assert one == tuple(one) != other
    assert one < other
    assert hash(one) == hash(tuple(one))
    assert (one.queue, one.queue_offset, one[2], one[-1]) == (2, 0, 2, one.store_host)
    status, log_offset, *_ = one
    assert (status, log_offset) == (one.status, 0)
    assert one._replace(size=1).size == 1
    assert list(one._asdict()) == list(Receipt._fields)
    message = Message("t", b"x", keys=["k"], properties={"a": "b"})
    assert message == Message("t", b"x", keys=("k",), properties={"a": "b"})
    assert message != Message("t", b"y")
    assert repr(message).startswith("Message(topic='t', body=b'x', queue=0, tag='', keys=('k',)")
    with pytest.raises(TypeError):
        hash(message)
    message.queue = 4
    assert message.__replace__(queue=5).queue == 5


def test_a_record_of_an_old_body_is_not_changed_by_what_the_caller_does_later(store: Store) -> None:
    body, view = bytearray(b"x" * 100), np.full(100, ord("x"), np.uint8)
    store.put("t", body)  # type: ignore[arg-type] # any buffer will do
    store.put("t", memoryview(view))  # type: ignore[arg-type] # any buffer will do
    body[:], view[:] = b"y" * 100, ord("y")
    assert {m.body for m in store.scan("t")} == {b"x" * 100}
    assert all(decode_record(m.record).body == b"x" * 100 for m in store.scan("t"))
