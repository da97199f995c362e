"""Stores for asyncio."""

import asyncio
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Durability, Message, StoreClosedError, aio
from penstock.aio.store import AsyncStore


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_put_and_read(tmp_path: Path, flush: str) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s", flush=flush) as store:
            assert isinstance(store, AsyncStore)
            receipts = await asyncio.gather(*(store.put("orders", b"%d" % n) for n in range(20)))
            wanted = Durability.ON_DISK if flush == "sync" else Durability.ACCEPTED
            assert {each.durability for each in receipts} == {wanted}
            await store.put_many([Message("orders", b"many")])
            found = await store.read("orders", limit=100)
            assert [each.body for each in found.messages] == [
                *(b"%d" % n for n in range(20)),
                b"many",
            ]
            assert await store.flush() == store.store.stats()["log_end_offset"]
            assert await store.call(store.store.max_offset, "orders") == 21
        with pytest.raises(StoreClosedError):
            store.store.read("orders")

    run(work())


def test_a_cancelled_put_is_in_the_log(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s", flush="sync") as store:
            task = asyncio.create_task(store.put("orders", b"x"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.flush()
            assert store.store.max_offset("orders") == 1

    run(work())


def test_many_calls_share_few_threads(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            await asyncio.gather(*(store.read("orders") for _ in range(100)))
            assert sum(each.name.startswith("penstock-aio") for each in threading.enumerate()) <= 4

    run(work())
    assert not [each for each in threading.enumerate() if each.name.startswith("penstock")]


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_messages_that_wait_for_a_time_are_put_listed_and_cancelled(
    tmp_path: Path, flush: str
) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s", flush=flush) as store:
            receipts = [
                await store.put("orders", b"delay", delay_ms=3_600_000),
                await store.put("orders", b"at", deliver_at=datetime.now(UTC) + timedelta(hours=2)),
            ]
            waiting = await store.delayed()
            assert [each.message_id for each in waiting] == [each.message_id for each in receipts]
            assert await store.cancel_delayed(receipts[0])
            assert not await store.cancel_delayed(receipts[0].message_id)
            assert [each.body_bytes for each in await store.delayed()] == [2]
            assert (await store.read("orders")).messages == []
            await store.put("orders", b"soon", delay_ms=1)
            async with await store.consumer("group", "orders") as consumer:
                (message,) = await consumer.poll(1, timeout=30)
                assert message.body == b"soon"
                await consumer.ack(message)

    run(work())
