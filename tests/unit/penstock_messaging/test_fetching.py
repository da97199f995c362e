"""Reading ahead."""

import threading
from typing import Any

import pytest
from tests.property.test_in_flight import Owned

from penstock.errors import StorageError
from penstock.message import ReadResult, ReadStatus
from penstock_messaging.consuming.fetching import (
    BATCH,
    BATCH_BYTES,
    BATCH_MAX,
    FIRST_BATCH,
    Fetcher,
)
from penstock_messaging.consuming.in_flight import InFlight, QueueFlight, StartPosition

NONE: Any = None


class Stored:
    reconsume_times = 0

    def __init__(self, queue_offset: int, size: int) -> None:
        self.queue_offset, self.size = queue_offset, size


class Store:
    """Queues of many messages of one size."""

    def __init__(self, size: int = 100, end: int = 10_000) -> None:
        self.size, self.end = size, end
        self.limits: list[tuple[int, int]] = []
        self.tags: list[str] = []
        self.meanwhile: Any = lambda: None
        self.failure: Exception | None = None

    def read(self, topic: str, queue: int, offset: int, limit: int, tag: str) -> ReadResult:
        self.limits.append((queue, limit))
        self.tags.append(tag)
        self.meanwhile()
        if self.failure is not None:
            raise self.failure
        stop = min(offset + limit, self.end)
        found: Any = [Stored(each, self.size) for each in range(offset, stop)]
        status = ReadStatus.FOUND if found else ReadStatus.OFFSET_OVERFLOW_ONE
        return ReadResult(status, found, max(offset, stop), 0, self.end)


def made(store: Any, queues: int = 2, *, is_retry: bool = False) -> tuple[Fetcher, InFlight]:
    in_flight = InFlight(ack_wait_ns=10, out_max=100_000)
    fetcher = Fetcher(store, in_flight, threading.RLock(), "paid")
    owned: list[Any] = [Owned("orders", n) for n in range(queues)]
    fetcher.queues = [
        QueueFlight(NONE, each, StartPosition(0), is_retry=is_retry) for each in owned
    ]
    return fetcher, in_flight


def test_a_batch_is_read_from_one_queue_after_another() -> None:
    store = Store()
    fetcher, in_flight = made(store)
    for _ in range(3):
        assert fetcher.fetch(1)
        # What is ready is handed out before more is read.
        assert fetcher.fetch(1)
        in_flight.take(1000, 0)
    assert store.limits == [(0, FIRST_BATCH), (1, BATCH), (0, BATCH)]


def test_a_large_request_reads_more_and_from_more_queues() -> None:
    store = Store(end=100)
    fetcher, in_flight = made(store)
    assert fetcher.fetch(150)
    assert store.limits == [(0, 150), (1, 50)]
    assert len(in_flight.take(1000, 0)) == 150


def test_what_is_read_is_a_multiple_of_what_is_taken() -> None:
    store = Store()
    fetcher, in_flight = made(store, 1)
    for _ in range(3):
        assert fetcher.fetch(50)
        assert len(in_flight.take(50, 0)) == 50
        in_flight.take(1000, 0)
    assert store.limits == [(0, 50), (0, 100), (0, 100)]


def test_reading_ahead_follows_a_reading_that_found_all_it_wanted() -> None:
    fetcher, in_flight = made(Store(end=150), 1)
    found = []
    for read in (
        lambda: None,
        lambda: fetcher.fetch(50),
        fetcher.fetch_ahead,
        fetcher.fetch_ahead,
    ):
        read()
        # What is there is handed out first.
        is_early = fetcher.may_read_ahead
        count = len(in_flight.take(1000, 0))
        found.append((is_early, count, fetcher.may_read_ahead))
    assert found == [(False, 0, False), (False, 50, True), (False, 100, True), (False, 0, False)]


def test_an_error_of_reading_ahead_is_left_to_the_next_reading() -> None:
    store = Store()
    fetcher, in_flight = made(store, 1)
    fetcher.fetch(100)
    in_flight.take(1000, 0)
    store.failure = StorageError("the disk")
    fetcher.fetch_ahead()
    with pytest.raises(StorageError, match="the disk"):
        fetcher.fetch(100)


def test_large_messages_are_read_a_few_at_a_time() -> None:
    store = Store(size=BATCH_BYTES // 4)
    fetcher, in_flight = made(store, 1)
    fetcher.fetch(1)
    in_flight.take(1000, 0)
    fetcher.fetch(BATCH_MAX)
    assert store.limits == [(0, FIRST_BATCH), (0, 4)]


def test_nothing_new_is_told() -> None:
    fetcher, _ = made(Store(end=0))
    assert not fetcher.fetch(1)
    assert not Fetcher(NONE, InFlight(ack_wait_ns=1, out_max=1), threading.RLock(), "*").fetch(1)


def test_the_retry_topic_is_read_without_the_filter() -> None:
    store = Store()
    made(store, 1)[0].fetch(1)
    made(store, 1, is_retry=True)[0].fetch(1)
    assert store.tags == ["paid", "*"]


def test_what_was_read_of_a_queue_that_went_meanwhile_is_dropped() -> None:
    store = Store()
    fetcher, in_flight = made(store, 1)
    store.meanwhile = lambda: in_flight.leave(fetcher.queues[0])
    fetcher.fetch(1)
    assert in_flight.take(10, 0) == []
    assert fetcher.queues[0].base == 0


def test_queues_that_hold_enough_have_nothing_new() -> None:
    fetcher, in_flight = made(Store())
    in_flight.pause(["orders"])
    assert not fetcher.fetch(1)
    in_flight.resume([])
    assert fetcher.fetch(1)
