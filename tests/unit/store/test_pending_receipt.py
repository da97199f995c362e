"""A future with a receipt: done when flush and copies are known, in whichever order they come."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.contracts import CopyOutcome
from penstock.errors import StoreFailedError
from penstock.message import Durability, PutStatus, Receipt
from penstock.store.pending_receipt import PendingReceipt

RECEIPT = Receipt(PutStatus.PUT_OK, 0, 0, 0, 1, 100, Durability.ACCEPTED, b"\x7f\0\0\1\0\0\x2a\x9f")


class Parts:
    """A flusher and copies that do what the test says."""

    def __init__(self, *, policy_waits: bool) -> None:
        self.flushed_offset = 0
        self.failure: StoreFailedError | None = None
        self.flush: list[Callable[[], None]] = []
        self.copies: list[Callable[[CopyOutcome], None]] = []
        self.requests = 0
        self.policy = SimpleNamespace(appender_waits=policy_waits, request=self._request)
        self.copying = SimpleNamespace(request=lambda _end, notify: self.copies.append(notify))

    def _request(self) -> None:
        self.requests += 1

    def add_waiter(self, _end: int, notify: Callable[[], None]) -> None:
        self.flush.append(notify)

    def outcome(self, end: int) -> StoreFailedError | None:
        return None if self.flushed_offset >= end else self.failure

    def pending(self, *, copies: bool = True) -> Any:
        return PendingReceipt(RECEIPT, self, self.policy, self.copying if copies else None)  # type: ignore[arg-type]


def test_without_copies_it_is_done_when_it_is_durable() -> None:
    parts = Parts(policy_waits=False)
    future = parts.pending(copies=False).begin(flushes=True)
    assert (parts.requests, future.done()) == (1, False)
    parts.flushed_offset = 100
    parts.flush[0]()
    parts.flush[0]()
    assert future.result(0).durability is Durability.ON_DISK


def test_flush_and_copies_go_on_at_the_same_time() -> None:
    for copies_first in (True, False):
        parts = Parts(policy_waits=False)
        future = parts.pending().begin(flushes=True)

        def flush(parts: Parts = parts) -> None:
            parts.flushed_offset = 100
            parts.flush[0]()

        def copy(parts: Parts = parts) -> None:
            parts.copies[0](CopyOutcome.ON_DISK)

        first, second = (copy, flush) if copies_first else (flush, copy)
        first()
        assert not future.done()
        second()
        assert future.result(0).durability is Durability.REPLICATED


def test_under_a_policy_that_waits_copies_come_after_the_flush() -> None:
    parts = Parts(policy_waits=True)
    future = parts.pending().begin(flushes=True)
    assert not parts.copies
    parts.flushed_offset = 100
    parts.flush[0]()
    parts.flush[0]()
    assert len(parts.copies) == 1
    parts.copies[0](CopyOutcome.LATE)
    assert future.result(0)[0] is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert future.result(0).durability is Durability.ON_DISK


def test_a_failed_flush_is_its_result_whatever_the_copies_say() -> None:
    parts = Parts(policy_waits=False)
    future = parts.pending().begin(flushes=True)
    parts.failure = StoreFailedError("the disk fails", 0)
    parts.flush[0]()
    parts.copies[0](CopyOutcome.ON_DISK)
    with pytest.raises(StoreFailedError):
        future.result(0)


def test_without_a_flush_only_copies_are_waited_for() -> None:
    parts = Parts(policy_waits=False)
    future = parts.pending().begin(flushes=False)
    assert (parts.requests, future.done()) == (0, False)
    parts.copies[0](CopyOutcome.RECEIVED)
    assert future.result(0).durability is Durability.ACCEPTED
    assert parts.pending(copies=False).begin(flushes=False).result(0) is RECEIPT
