"""Broadcast: every consumer gets all messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.store.store import Store
from penstock_messaging.consuming.broadcast import first_offset


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(tmp_path / "store") as opened:
        yield opened


def test_every_consumer_gets_all_messages_from_now_on(store: Store) -> None:
    store.put("orders", b"before")
    with (
        store.consumer("shop", "orders", broadcast=True) as one,
        store.consumer("shop", "orders", broadcast=True) as other,
    ):
        store.put("orders", b"after")
        assert [each.body for each in one.poll(10)] == [b"after"]
        assert [each.body for each in other.poll(10)] == [b"after"]
    assert store.groups() == {}


def test_answers_are_ignored_and_nothing_comes_again(store: Store) -> None:
    for _ in range(5):
        store.put("orders", b"x")
    with store.consumer(
        "shop", "orders", broadcast=True, start="earliest", max_in_flight=1, ack_wait=0.001
    ) as consumer:
        first, second, *_ = messages = consumer.poll(10)
        assert len(messages) == 5
        first.nack()
        consumer.ack([second, first])
        consumer.release(messages)
        assert consumer.poll(timeout=0.01) == []
        assert consumer.pending() == []
        assert consumer.lag() == {("orders", 0): 0}
        consumer.seek("orders", offset=3)
        assert len(consumer.poll(10)) == 2


def test_where_it_begins(store: Store) -> None:
    receipts = [store.put("orders", b"x") for _ in range(3)]
    assert first_offset(store, "orders", 0, "earliest") == 0
    assert first_offset(store, "orders", 0, "latest") == 3
    assert first_offset(store, "orders", 0, receipts[0].store_time_ms) == 0
    assert first_offset(store, "orders", 0, receipts[2].store_time_ms + 1) == 3


def test_a_topic_that_appears_later_is_read_from_its_first_message(store: Store) -> None:
    with store.consumer("shop", "eu-*", broadcast=True) as consumer:
        store.put("eu-1", b"first")
        assert [each.body for each in consumer.poll(timeout=10)] == [b"first"]
