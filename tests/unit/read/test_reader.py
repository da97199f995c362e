"""Messages out of a store by queue offset: answers at every bound, gaps skipped, corruption named."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from penstock.errors import ArgumentError, StoreClosedError, TopicError
from penstock.message import ReadStatus
from penstock.read.reader import LOOKED_AT_MAX, Reader
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store


@pytest.fixture
def store() -> Store:
    made = open_store(Path("/store"), files=SimulatedDisk(), spawn=ManualWorkers(), retention=[])
    for number in range(30):
        made.put("t", b"%d" % number, tag="odd" if number % 2 else "even", keys=[f"k{number}"])
    return made


def test_messages_come_in_order_and_the_answer_says_where_to_go_on(store: Store) -> None:
    assert isinstance(store, Reader)
    bodies, offset = list[bytes](), 0
    while (found := store.read("t", offset=offset, limit=7)).status is ReadStatus.FOUND:
        bodies += [message.body for message in found.messages]
        offset = found.next_offset
    assert bodies == [b"%d" % number for number in range(30)]
    assert (found.status, found.min_offset, found.max_offset) == (
        ReadStatus.OFFSET_OVERFLOW_ONE,
        0,
        30,
    )


def test_a_tag_picks_and_a_range_without_it_is_passed_over(store: Store) -> None:
    found = store.read("t", tag="odd", limit=3)
    assert [message.body for message in found.messages] == [b"1", b"3", b"5"]
    assert found.next_offset == 6
    none = store.read("t", tag="none")
    assert (none.status, none.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 30)
    assert LOOKED_AT_MAX == 800


def test_a_queue_that_is_not_there_has_no_messages(store: Store) -> None:
    assert store.read("none").status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert (store.min_offset("none"), store.max_offset("none")) == (0, 0)
    assert store.topics() == {"t": [0]}


def test_what_cannot_be_a_topic_is_refused(store: Store) -> None:
    with pytest.raises(TopicError):
        store.read("../t")


def test_a_message_is_found_by_its_id_and_its_key(store: Store) -> None:
    message = store.read("t", offset=7).messages[0]
    assert store.get(message.message_id) == message
    assert store.find("t", "k7") == [message]


def test_a_closed_store_is_not_read(store: Store) -> None:
    store.close()
    with pytest.raises(StoreClosedError):
        store.read("t")


def test_a_time_may_be_a_datetime_with_a_zone() -> None:
    clock = ManualClock()
    store = open_store(Path("/s"), files=SimulatedDisk(), spawn=ManualWorkers(), clock=clock)
    for _ in range(4):
        store.put("t", b"x", keys=["k"])
        clock.now_ms += 1000
    first_ms = store.read("t").messages[0].store_time_ms
    third = datetime.fromtimestamp((first_ms + 2000) / 1000, timezone(timedelta(hours=5)))
    assert store.offset_at("t", time_ms=third) == 2
    assert store.offset_at("t", time_ms=third + timedelta(microseconds=1)) == 3
    assert store.offset_at("t", time_ms=third + timedelta(microseconds=1), boundary="upper") == 2
    assert [m.queue_offset for m in store.find("t", "k", begin_ms=third)] == [2, 3]
    assert [m.queue_offset for m in store.find("t", "k", end_ms=third)] == [0, 1, 2]
    assert store.discard_before(time_ms=third) == 0
    with pytest.raises(ArgumentError, match="a datetime with a time zone"):
        store.offset_at("t", time_ms=third.replace(tzinfo=None))
