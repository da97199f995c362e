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


@pytest.mark.parametrize(("ordered", "transacted"), [(False, False), (True, False), (False, True)])
def test_it_is_called_once_and_acknowledges(
    store: Any, clock: ManualClock, *, ordered: bool, transacted: bool
) -> None:
    store.put("t", b"slow", queue=0)
    called = []

    def handle(message: Any) -> None:
        called.append(message.attempt)
        for _ in range(3):
            clock.now_ms += LONG_MS
            assert consumer.gather(10) == []
        if transacted:
            with store.transaction() as transaction:
                transaction.ack(message)
        consumer.close()

    with store.consumer("g", "t", ack_wait=1, ordered=ordered) as consumer:
        consumer.run(handle)
    assert called == [1]
    assert left_over(store) == []


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


@pytest.mark.parametrize("wrong", [0, -1, "x", True])
def test_a_wrong_limit_is_refused(store: Any, wrong: Any) -> None:
    with (
        store.consumer("g", "t") as consumer,
        pytest.raises(penstock.ArgumentError, match="handler_timeout"),
    ):
        consumer.run(print, handler_timeout=wrong)
