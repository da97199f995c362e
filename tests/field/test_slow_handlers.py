"""Handlers that take longer than `ack_wait`: other message stores call them again and again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.testing import ManualClock

LONG_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Any]:
    with penstock.open(tmp_path / "store", clock=clock) as opened:
        yield opened


def left_over(store: Any) -> list[bytes]:
    """Return what the group still gets."""
    with store.consumer("g", "t") as consumer:
        return [each.body for each in consumer.gather(10)]


@pytest.mark.parametrize("ordered", [False, True])
def test_it_is_called_once_and_acknowledges(
    store: Any, clock: ManualClock, *, ordered: bool
) -> None:
    store.put("t", b"slow", queue=0)
    called = []

    def handle(message: Any) -> None:
        called.append(message.attempt)
        for _ in range(3):
            clock.now_ms += LONG_MS
            assert consumer.gather(10) == []
        consumer.close()

    with store.consumer("g", "t", ack_wait=1, ordered=ordered) as consumer:
        consumer.run(handle)
    assert called == [1]
    assert left_over(store) == []


def test_messages_of_other_calls_keep_their_time(store: Any, clock: ManualClock) -> None:
    store.put_many([penstock.Message("t", b"%d" % n, queue=0) for n in range(2)])

    def handle(message: Any) -> None:
        (polled,) = consumer.gather(10)
        clock.now_ms += LONG_MS
        (again,) = consumer.gather(10)
        assert (message.body, polled.body, again.body) == (b"0", b"1", b"1")
        consumer.close()

    with store.consumer("g", "t", ack_wait=1) as consumer:
        consumer.run(handle)
    assert left_over(store) == [b"1"]


def test_a_handler_timeout_ends_the_extension_at_that_time(store: Any, clock: ManualClock) -> None:
    store.put("t", b"slow", queue=0)

    def handle(_: Any) -> None:
        clock.now_ms += 9_999
        assert consumer.gather() == []
        clock.now_ms += 1
        assert len(consumer.gather()) == 1
        consumer.close()

    with store.consumer("g", "t", ack_wait=3) as consumer:
        consumer.run(handle, handler_timeout=10)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_its_end_counts_after_the_limit_while_nobody_else_has_the_message(
    store: Any, clock: ManualClock, *, fails: bool, ordered: bool
) -> None:
    store.put_many([penstock.Message("t", b"%d" % n, queue=0) for n in range(2)])
    seen = []

    def handle(message: Any) -> None:
        seen.append((message.body, message.attempt))
        if len(seen) == 1:
            clock.now_ms += LONG_MS
            # Another call notices that the time is over, and does not take the message.
            consumer.pause()
            assert consumer.take() == []
            assert consumer.pending() == []
            consumer.resume()
            if fails:
                raise ValueError
            return
        consumer.close()

    with store.consumer("g", "t", ack_wait=1, ordered=ordered, max_retries=0) as consumer:
        consumer.run(handle, handler_timeout=2)
    assert seen == [(b"0", 1), (b"1", 1)]
    assert left_over(store) == []


def test_what_the_handler_released_is_left_as_it_is(store: Any, clock: ManualClock) -> None:
    store.put("t", b"back", queue=0)

    def handle(message: Any) -> None:
        message.release()
        clock.now_ms += LONG_MS
        consumer.pause()
        consumer.close()

    with store.consumer("g", "t", ack_wait=1) as consumer:
        consumer.run(handle)
    assert left_over(store) == [b"back"]


def test_a_transaction_that_ends_after_the_handler_gives_the_message_back_with_its_time(
    store: Any, clock: ManualClock
) -> None:
    store.put_many([penstock.Message("t", b"%d" % n, queue=0) for n in range(2)])
    transactions, seen = [], []

    def handle(message: Any) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            transactions.append(store.transaction())
            transactions[0].__enter__().ack(message)
            return
        transactions[0].__exit__(ValueError, ValueError(), None)
        clock.now_ms += LONG_MS
        assert [each.body for each in consumer.gather(10)] == [b"0"]
        consumer.close()

    with store.consumer("g", "t", ack_wait=1) as consumer:
        consumer.run(handle)
    assert left_over(store) == [b"0"]


def test_a_transaction_in_a_slow_handler_acknowledges(store: Any, clock: ManualClock) -> None:
    store.put("t", b"slow", queue=0)

    def handle(message: Any) -> None:
        clock.now_ms += LONG_MS
        assert consumer.gather() == []
        with store.transaction() as transaction:
            transaction.ack(message)
        consumer.close()

    with store.consumer("g", "t", ack_wait=1) as consumer:
        consumer.run(handle)
    assert left_over(store) == []


def test_an_exception_after_a_release_refuses_nothing(store: Any) -> None:
    store.put("t", b"back", queue=0)
    with pytest.raises(ValueError, match="after"), store.consumer("g", "t") as consumer:
        (message,) = consumer.poll()
        message.release()
        raise ValueError("after the release")
    assert left_over(store) == [b"back"]


@pytest.mark.parametrize("wrong", [0, -1, "x", True])
def test_a_wrong_limit_is_refused(store: Any, wrong: Any) -> None:
    with (
        store.consumer("g", "t") as consumer,
        pytest.raises(penstock.ArgumentError, match="handler_timeout"),
    ):
        consumer.run(print, handler_timeout=wrong)
