"""Messages out of a store by queue offset: answers at every bound, gaps skipped, corruption named."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from penstock.errors import ArgumentError, StoreClosedError, TopicError
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store


@pytest.fixture
def store() -> Store:
    made = open_store(Path("/store"), files=SimulatedDisk(), spawn=ManualWorkers(), retention=[])
    for number in range(30):
        made.put("t", b"%d" % number, tag="odd" if number % 2 else "even", keys=[f"k{number}"])
    return made


def test_what_cannot_be_a_topic_is_refused(store: Store) -> None:
    with pytest.raises(TopicError):
        store.read("../t")


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
