"""Transactions for asyncio."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from penstock import Message, aio
from penstock.aio.transaction import AsyncTransaction
from penstock.contracts import Transaction
from penstock.errors import TransactionEndedError


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_messages_are_stored_and_others_acknowledged(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            await store.put("in", b"1")
            async with await store.consumer("g", "in") as consumer:
                (message,) = await consumer.poll(1, 10)
                async with store.transaction() as tx:
                    assert isinstance(tx, AsyncTransaction)
                    await tx.ack(message)
                    await tx.put("out", b"a", tag="t")
                    await tx.put_many([Message("out", b"b")])
                    assert "out" not in store.store.topics()
                assert len(tx.receipts) == 2
                assert await consumer.lag() == {("%RETRY%g", 0): 0, ("in", 0): 0}
                with pytest.raises(TransactionEndedError):
                    await tx.put("out", b"c")

    run(work())


def test_an_exception_drops_all(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            await store.put("in", b"1")
            async with await store.consumer("g", "in") as consumer:
                (message,) = await consumer.poll(1, 10)
                with pytest.raises(ZeroDivisionError):
                    async with store.transaction() as tx:
                        await tx.ack(message)
                        await tx.put("out", b"a")
                        raise ZeroDivisionError
                assert len(consumer.pending()) == 1
                assert "out" not in store.store.topics()

    run(work())


class Slow:
    """A transaction whose end waits."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transaction, name)

    def __enter__(self) -> None:
        self.transaction.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.begun.set()
        assert self.may_end.wait(60)
        self.transaction.__exit__(kind, error, trace)


def test_a_cancelled_task_completes_what_has_begun(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            tx: Any = store.transaction()
            tx.transaction = slow = Slow(tx.transaction)

            async def put() -> None:
                async with tx:
                    await tx.put("out", b"a")

            task = asyncio.create_task(put())
            assert await asyncio.to_thread(slow.begun.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not tx.receipts
            slow.may_end.set()
        # The end of the store waits for it.
        assert len(tx.receipts) == 1

    run(work())
