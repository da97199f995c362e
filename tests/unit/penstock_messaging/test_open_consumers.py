"""The consumers of an open store, on the groups of its files."""

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import ArgumentError, ConsumerClosedError, LostQueueError, StoreClosedError
from penstock_messaging.consuming.open_consumers import OpenConsumers


def test_a_group_goes_on_where_it_was(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s") as store:
        for n in range(4):
            store.put("orders", b"%d" % n)
        with store.consumer("billing", "orders") as consumer:
            first, second, *_ = consumer.poll(10)
            second.ack()
            first.ack(sync=False)
    with penstock.open(tmp_path / "s") as store, store.consumer("billing", "orders") as consumer:
        assert [each.body for each in consumer.poll(10)] == [b"2", b"3"]
        assert consumer.lag() == {("%RETRY%billing", 0): 0, ("orders", 0): 2}


def test_a_reader_consumes_beside_the_writer(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s") as writer:
        writer.put("orders", b"0")
        with (
            penstock.open(tmp_path / "s", read_only=True) as reader,
            reader.consumer("billing", "orders") as consumer,
        ):
            consumer.ack(consumer.poll())
            writer.put("orders", b"1")
            assert [each.body for each in consumer.poll(timeout=10)] == [b"1"]


def test_closing_the_store_closes_its_consumers(tmp_path: Path) -> None:
    store = penstock.open(tmp_path / "s")
    store.put("orders", b"0")
    consumer = store.consumer("billing", "orders")
    (message,) = consumer.poll()
    store.close()
    with pytest.raises(ConsumerClosedError):
        consumer.poll()
    with pytest.raises(LostQueueError):
        message.ack()
    consumer.close()
    with pytest.raises(StoreClosedError):
        store.consumer("billing", "orders")


def test_arguments_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s") as store:
        wrong: Any = {"ackwait": 3}
        for group, topics, options in (("", "a", {}), ("g", [], {}), ("g", "a", wrong)):
            with pytest.raises(ArgumentError):
                store.consumer(group, topics, **options)
        assert not list((tmp_path / "s" / "penstock").glob("groups/*"))


def test_figures_by_group(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "s") as store:
        store.put("orders", b"0")
        extension: Any = store.extension("messaging")
        opened: OpenConsumers = extension._consumers
        with store.consumer("billing", "orders") as consumer, store.consumer("billing", "orders"):
            consumer.poll(timeout=0)
            figures = opened.stats()["billing"]
            assert figures["consumers"] == 2
            assert figures["failed"] == 0
        assert opened.stats() == {}
