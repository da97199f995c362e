"""`Consumer.run`; that it handles, acknowledges and refuses is tested through `Consumer`."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import StorageError
from penstock.store.store import Store
from penstock_messaging.consuming.in_flight import Handling
from penstock_messaging.consuming.workers import HandlerRun


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(tmp_path / "store") as opened:
        opened.put("orders", b"x")
        yield opened


@pytest.mark.slow
def test_close_in_another_thread_waits_for_the_handlers(store: Store) -> None:
    begun, may_end, done = threading.Event(), threading.Event(), []

    def handle(_: Any) -> None:
        begun.set()
        may_end.wait(10)
        done.append("handled")

    consumer = store.consumer("billing", "orders")
    runs = threading.Thread(target=consumer.run, args=(handle,))
    runs.start()
    assert begun.wait(10)

    def close() -> None:
        consumer.close()
        done.append("closed")

    closes = threading.Thread(target=close)
    closes.start()
    may_end.set()
    closes.join(10)
    runs.join(10)
    assert done == ["handled", "closed"]
    with store.consumer("billing", "orders") as again:
        assert again.poll(timeout=0.05) == []


def test_a_message_that_the_handler_answered_is_left_as_it_is(store: Store) -> None:
    def handle(message: Any) -> None:
        message.release()
        consumer.close()

    with store.consumer("billing", "orders") as consumer:
        consumer.run(handle)
    with store.consumer("billing", "orders") as again:
        assert len(again.poll(timeout=5)) == 1


def test_run_is_called_once_at_a_time(store: Store) -> None:
    def handle(_: Any) -> None:
        with pytest.raises(StorageError, match="workers"):
            consumer.run(print)
        consumer.close()

    with store.consumer("billing", "orders") as consumer:
        consumer.run(handle)


def test_what_stops_a_thread_is_raised(store: Store) -> None:
    consumer: Any = store.consumer("billing", "orders")
    with consumer:

        def poll(_by: object, _timeout: float) -> None:
            raise OSError(5, "the disk fails")

        consumer.poll_for = poll
        run = HandlerRun(consumer, print, Handling(), consumer._context.spawn, 2)
        with pytest.raises(OSError, match="the disk fails"):
            run.run()
