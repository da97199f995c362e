"""Consumers for asyncio: the same rules as the blocking ones, whatever is cancelled when."""

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from tests.lanes import NIGHT

from penstock import LostQueueError, Message, aio
from penstock.aio.consumer import AsyncConsumer
from penstock_messaging.extension import MessagingExtension

CANCELLATIONS = 10_000 if NIGHT else 400


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 300))


def put(store: aio.AsyncStore, count: int) -> None:
    store.store.put_many([Message("orders", b"%d" % n, queue=n % 4) for n in range(count)])


def test_a_loop_hands_out_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            put(store, 8)
            seen: list[int] = []
            later = None
            async with await store.consumer("billing", "orders") as consumer:
                async for message in consumer:
                    await consumer.ack(message)
                    seen.append(int(message.body))
                    if len(seen) == 8:
                        later = asyncio.create_task(store.put("orders", b"8"))
                    if len(seen) == 9:
                        break
                assert later is not None
                await later
                assert set((await consumer.lag()).values()) == {0}
                assert consumer.pending() == []
            assert sorted(seen) == list(range(9))

    run(work())


def test_an_ack_of_a_queue_that_another_member_got_is_an_error(tmp_path: Path) -> None:
    """It returned as if it were done: what a queue that is given back raises was taken for what a lost one raises."""

    async def work() -> None:
        async with (
            await aio.open(tmp_path / "s") as store,
            await store.consumer("billing", "orders") as consumer,
        ):
            await store.put("orders", b"x")
            messages = await consumer.poll()
            groups = cast("MessagingExtension", store.store.extension("messaging")).groups
            # Somebody removes the file of the lock.
            groups.paths("billing").queue_lock("orders", 0).unlink()
            other = groups.take("billing", "orders", 0, member="other", begin=lambda: 0)
            assert other is not None
            with pytest.raises(LostQueueError):
                await consumer.ack(messages)
            other.hand_back()

    run(work())


def test_an_ack_is_complete_after_its_consumer_was_closed(tmp_path: Path) -> None:
    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            await store.put("orders", b"x")
            consumer = await store.consumer("billing", "orders")
            wait = consumer.consumer.begin_ack(await consumer.poll())
            await consumer.close()
            wait()
            async with await store.consumer("billing", "orders") as other:
                assert await other.poll(timeout=0) == []

    run(work())


def test_a_timeout_returns_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            await aio.open(tmp_path / "s") as store,
            await store.consumer("billing", "orders") as consumer,
        ):
            assert await consumer.poll(timeout=0) == []
            assert await consumer.poll(timeout=0.01) == []

    run(work())


def test_an_exception_refuses_the_message_in_hand_and_a_cancellation_none(tmp_path: Path) -> None:
    async def fail(store: aio.AsyncStore, error: BaseException) -> None:
        async with await store.consumer("billing", "orders") as consumer:
            async for _ in consumer:
                raise error

    async def left(store: aio.AsyncStore) -> list[bytes]:
        async with await store.consumer("billing", "orders") as consumer:
            return [each.body for each in await consumer.poll(10)]

    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            store.store.put_many([Message("orders", b"%d" % n) for n in range(3)])
            with pytest.raises(asyncio.CancelledError):
                await fail(store, asyncio.CancelledError())
            assert await left(store) == [b"0", b"1", b"2"]
            with pytest.raises(ZeroDivisionError):
                await fail(store, ZeroDivisionError())
            assert await left(store) == [b"1", b"2"]

    run(work())


def test_close_ends_a_loop(tmp_path: Path) -> None:
    async def loop(consumer: AsyncConsumer) -> None:
        async for _ in consumer:
            pass

    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            consumer = await store.consumer("billing", "orders")
            task = asyncio.create_task(loop(consumer))
            await asyncio.sleep(0)
            await consumer.close()
            await task

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_cancellations_neither_lose_nor_double_an_acknowledgement(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    total = CANCELLATIONS // 2
    acknowledged: set[tuple[int, int]] = set()
    handed: list[tuple[int, int]] = []

    async def consume(consumer: AsyncConsumer) -> None:
        while True:
            for message in await consumer.poll(chance.randint(1, 5)):
                key = (message.queue, message.queue_offset)
                assert key not in acknowledged, "handed out after its acknowledgement"
                handed.append(key)
                # Recorded before the first pause, so also if this is cancelled.
                acknowledged.add(key)
                await consumer.ack(message, sync=chance.random() < 0.3)

    async def work() -> None:
        async with await aio.open(tmp_path / "s") as store:
            consumer = await store.consumer("billing", "orders", ack_wait=1000)
            cancelled = number = 0
            while cancelled < total:
                tasks = [asyncio.create_task(consume(consumer)) for _ in range(3)]
                for _ in range(chance.randint(0, 3)):
                    await store.put("orders", b"%d" % number, queue=number % 4)
                    number += 1
                for _ in range(chance.randint(0, 6)):
                    await asyncio.sleep(0 if chance.random() < 0.8 else 0.0005)
                for task in tasks:
                    cancelled += task.cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(each, asyncio.CancelledError) for each in found), found
                # A message of a poll that was cut short by the cancellation of its task is not answered.
                left = [m for m in _out(consumer) if (m.queue, m.offset) not in acknowledged]
                consumer.release(left)
            tasks = [asyncio.create_task(consume(consumer))]
            while len(acknowledged) < number:
                await asyncio.sleep(0.001)
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert set((await consumer.lag()).values()) == {0}
            await consumer.close()
            again = await store.consumer("billing", "orders")
            assert await again.poll(timeout=0) == []
            await again.close()
            assert len(handed) == number

    run(work())


def _out(consumer: AsyncConsumer) -> list[Any]:
    inner: Any = consumer.consumer
    return list(inner._in_flight.out)
