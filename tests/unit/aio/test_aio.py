"""Stores and consumers for asyncio: every call of the blocking ones, and the same rules, whatever is cancelled when."""

import asyncio
import inspect
import random
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import pytest
from tests.conftest import Listen
from tests.lanes import NIGHT, eventually

import penstock
from penstock import (
    ArgumentError,
    ConsumerClosedError,
    Durability,
    LostQueueError,
    Message,
    OffsetError,
    PutStatus,
    Store,
    StoreClosedError,
    aio,
)
from penstock.aio.calls import Bell
from penstock.aio.store import AsyncTransaction
from penstock.contracts import Consumer, Transaction
from penstock.errors import ArgumentTypeError, TransactionEndedError
from penstock_messaging.extension import MessagingExtension

CANCELLATIONS = 10_000 if NIGHT else 400
# What event loops have another way to do, or need not do.
NOT_FOR_PROGRAMS = {"leave", "lowlevel", "path", "read_only", "recovery"}


def run(work: Callable[[aio.AsyncStore], Coroutine[Any, Any, None]], path: Path, **given: Any) -> None:  # fmt: skip
    """Run a test's coroutine with an open store."""

    async def opened() -> None:
        async with aio.open(path / "s", environ={}, **given) as store:
            await work(store)

    asyncio.run(asyncio.wait_for(opened(), 120))
    eventually(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("penstock")],
        "no thread is left",
    )


# --- stores


def test_every_call_of_a_store_and_a_consumer_is_there() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(Store) - NOT_FOR_PROGRAMS - names(aio.AsyncStore) == set()
    assert names(Consumer) - {"begin_ack", "gather", "take"} - names(aio.AsyncConsumer) == set()
    assert list(inspect.signature(aio.AsyncStore.find).parameters) == list(
        inspect.signature(Store.find).parameters
    )


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_put_and_read(tmp_path: Path, flush: str) -> None:
    async def work(store: aio.AsyncStore) -> None:
        receipts = await asyncio.gather(
            *(store.put("orders", b"%d" % n, queue=0) for n in range(20))
        )
        wanted = Durability.ON_DISK if flush == "sync" else Durability.ACCEPTED
        assert {(each.status, each.durability) for each in receipts} == {(PutStatus.PUT_OK, wanted)}
        await store.put_many(
            [Message("orders", b"%d" % n, queue=0, keys=["k"]) for n in range(20, 230)]
        )
        bodies = [b"%d" % n for n in range(230)]
        found = await store.read("orders", 0, limit=230)
        assert [each.body for each in found.messages] == bodies
        assert [each.body async for each in store.scan("orders")] == bodies
        assert len(await store.find("k", "orders", limit=1000)) == 210
        assert await store.max_offset("orders", 0) == 230
        assert await store.flush() == (await store.stats())["log_end_offset"]
        assert [finding async for finding in store.verify()] == []
        assert (await store.submit("other", b"x")).durability is Durability.ON_DISK
        with pytest.raises(OffsetError):
            await store.at(7)

    run(work, tmp_path, flush=flush)


def test_a_store_is_opened_by_await_as_well_and_closed_once(tmp_path: Path) -> None:
    async def work() -> None:
        store = await aio.open(tmp_path / "s", environ={})
        consumer = await store.consumer("billing", "orders")
        await consumer.close()
        await store.close()
        with pytest.raises(StoreClosedError):
            await store.store.read("orders", 0)  # type: ignore[misc] # it raises before

    asyncio.run(work())


def test_a_cancelled_opening_stops_no_loop_and_its_store_is_closed(
    tmp_path: Path, listen: Listen
) -> None:
    """The loop waited for the end of the opening, for which a large recovery takes minutes."""
    begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def hold(_: object) -> None:
        begun.set()
        ended.append(may_end.wait(20))

    listen("penstock_store_opened", "root", hold)

    async def work() -> None:
        opening = asyncio.ensure_future(aio.open(tmp_path / "s", environ={}))
        assert await asyncio.to_thread(begun.wait, 60)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(work())
    may_end.set()
    eventually(lambda: "penstock" not in str(threading.enumerate()), "no thread is left")
    assert ended == [True], "the loop ended before the opening did"
    penstock.open(tmp_path / "s", environ={}).close()


def test_a_cancelled_put_is_in_the_log(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        task = asyncio.create_task(store.put("orders", b"x", queue=0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.flush()
        assert await store.max_offset("orders", 0) == 1

    run(work, tmp_path, flush="sync")


def test_many_calls_share_few_threads(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 1)
        await asyncio.gather(*(store.read("orders", 0) for _ in range(100)))
        assert sum(each.name.startswith("penstock-aio") for each in threading.enumerate()) <= 4

    run(work, tmp_path)


def test_messages_that_wait_for_a_time_are_put_listed_and_cancelled(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        receipts = [
            await store.put("orders", b"delay", queue=0, delay=3600),
            await store.put(
                "orders", b"at", queue=0, deliver_at=datetime.now(UTC) + timedelta(hours=2)
            ),
        ]
        waiting = await store.delayed()
        assert [each.message_id for each in waiting] == [each.message_id for each in receipts]
        assert await store.cancel_delayed(receipts[0])
        assert not await store.cancel_delayed(receipts[0].message_id)
        assert [each.body_bytes for each in await store.delayed()] == [2]

    run(work, tmp_path)


# --- consumers


def put(store: aio.AsyncStore, count: int) -> None:
    store.store.put_many([Message("orders", b"%d" % n, queue=n % 4) for n in range(count)])


def test_a_loop_hands_out_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 8)
        seen: list[int] = []
        later = None
        async with store.consumer("billing", "orders") as consumer:
            async for message in consumer:
                await message.ack()
                seen.append(int(message.body))
                if len(seen) == 8:
                    later = asyncio.create_task(store.put("orders", b"8", queue=0))
                if len(seen) == 9:
                    break
            assert later is not None
            await later
            assert {each.lag for each in await consumer.lag()} == {0}
            assert await consumer.pending() == []
        assert sorted(seen) == list(range(9))

    run(work, tmp_path)


def test_objects_show_what_they_wrap_and_are_for_async_with(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 1)
        assert repr(store) == f"AsyncStore({store.store!r})"
        async with store.transaction() as block:
            assert "transaction, open" in repr(block)
        async with store.consumer("billing", "orders") as consumer:
            (message,) = await consumer.poll()
            assert {"ack", "body", "keys"} <= {*dir(message)}
            assert "'billing'" in repr(consumer)
        with pytest.raises(TypeError, match="async with"), store.consumer("billing", "orders"):
            pass

    run(work, tmp_path)


def test_messages_are_answered_by_their_own_methods(tmp_path: Path) -> None:
    """`await message.ack()` acknowledged, blocked the loop, then raised, and the task died without a word."""

    async def work(store: aio.AsyncStore) -> None:
        put(store, 4)
        async with store.consumer("billing", "orders", max_retries=0) as consumer:
            acked, refused, released, extended = await consumer.poll(4)
            assert (acked.topic, acked.attempt, acked.stored.topic) == ("orders", 1, "orders")
            await acked.ack()
            await refused.nack(delay=1)
            await extended.extend()
            assert len(await consumer.pending()) == 2
            await released.release()
            (again,) = await consumer.poll(4)
            assert again.body == released.body
            await consumer.ack([again, extended])
            assert await consumer.pending() == []

    run(work, tmp_path)


def test_an_ack_of_a_queue_that_another_member_got_is_an_error(tmp_path: Path) -> None:
    """It returned as if it were done: what a queue that is given back raises was taken for what a lost one raises."""

    async def work(store: aio.AsyncStore) -> None:
        await store.put("orders", b"x", queue=0)
        async with store.consumer("billing", "orders") as consumer:
            messages = await consumer.poll()
            groups = cast("MessagingExtension", store.store.lowlevel.extension("messaging")).groups
            # Somebody removes the file of the lock.
            groups.paths("billing").queue_lock("orders", 0).unlink()
            other = groups.claim("billing", "orders", 0, member="other", begin=lambda: 0)
            assert other is not None
            with pytest.raises(LostQueueError):
                await consumer.ack(messages)
            other.hand_back()

    run(work, tmp_path)


def test_an_ack_is_complete_after_its_consumer_was_closed(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        await store.put("orders", b"x", queue=0)
        consumer = await store.consumer("billing", "orders")
        (message,) = await consumer.poll()
        acking = asyncio.create_task(message.ack())
        await asyncio.sleep(0)
        await consumer.close()
        await acking
        async with store.consumer("billing", "orders") as other:
            assert await other.poll(timeout=0) == []

    run(work, tmp_path)


def test_an_exception_refuses_the_message_in_hand_and_a_cancellation_none(tmp_path: Path) -> None:
    async def fail(store: aio.AsyncStore, error: BaseException) -> None:
        async with store.consumer("billing", "orders") as consumer:
            async for _ in consumer:
                raise error

    async def left(store: aio.AsyncStore) -> list[bytes]:
        async with store.consumer("billing", "orders") as consumer:
            return [each.body for each in await consumer.poll(10)]

    async def work(store: aio.AsyncStore) -> None:
        store.store.put_many([Message("orders", b"%d" % n, queue=0) for n in range(3)])
        with pytest.raises(asyncio.CancelledError):
            await fail(store, asyncio.CancelledError())
        assert await left(store) == [b"0", b"1", b"2"]
        with pytest.raises(ZeroDivisionError):
            await fail(store, ZeroDivisionError())
        assert await left(store) == [b"1", b"2"]

    run(work, tmp_path)


def test_close_ends_a_loop(tmp_path: Path) -> None:
    async def loop(consumer: aio.AsyncConsumer) -> None:
        async for _ in consumer:
            pass

    async def work(store: aio.AsyncStore) -> None:
        consumer = await store.consumer("billing", "orders")
        task = asyncio.create_task(loop(consumer))
        await asyncio.sleep(0)
        await consumer.close()
        await task
        with pytest.raises(ConsumerClosedError):
            await consumer.poll()

    run(work, tmp_path)


def test_a_consumer_that_joins_while_the_store_closes_ends_with_it(tmp_path: Path) -> None:
    """Its `poll` and its loop raised a bare RuntimeError of the threads that the store shuts down."""

    async def work(store: aio.AsyncStore) -> None:
        put(store, 1)
        first, others = threading.Event(), threading.Event()
        gates = [first, others, others, others]
        held = [asyncio.create_task(store.call(each.wait)) for each in gates]
        await asyncio.sleep(0)
        joining = asyncio.ensure_future(store.consumer("billing", "orders"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        while not held[-1].done():
            held.append(asyncio.create_task(store.call(bool)))
            await asyncio.sleep(0)
        first.set()
        try:
            consumer = await joining
            with pytest.raises(StoreClosedError):
                await consumer.poll(timeout=0)
            assert [message async for message in consumer] == []
        finally:
            others.set()
        await closing
        await asyncio.gather(*held, return_exceptions=True)

    run(work, tmp_path)


def test_run_awaits_a_handler_for_each_message_until_it_closes(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 8)
        seen: list[bytes] = []
        async with store.consumer("billing", "orders", workers=3, max_retries=0) as consumer:

            async def handle(message: aio.AsyncMessage) -> None:
                seen.append(message.body)
                await asyncio.sleep(0)
                if len(seen) == 8:
                    await consumer.close()
                if message.body == b"3":
                    raise ValueError("refused")

            await consumer.run(handle)
        assert sorted(seen) == [b"%d" % n for n in range(8)]
        async with store.consumer("billing", "orders") as other:
            assert await other.poll(8, timeout=0) == []

    run(work, tmp_path)


def test_run_that_is_cancelled_closes_the_consumer(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 1)
        consumer = await store.consumer("billing", "orders")
        handling = asyncio.Event()

        async def handle(_: aio.AsyncMessage) -> None:
            handling.set()

        task = asyncio.create_task(consumer.run(handle))
        await handling.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ConsumerClosedError):
            await consumer.poll()

    run(work, tmp_path)


class Crowd:
    """Tasks that consume, and what they have seen."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.acknowledged: set[tuple[int, int]] = set()
        self.out: list[aio.AsyncMessage] = []
        self.handed = 0

    async def consume(self, consumer: aio.AsyncConsumer) -> None:
        while True:
            found = await consumer.poll(self.chance.randint(1, 5))
            self.out += found
            for message in found:
                key = message.queue, message.queue_offset
                assert key not in self.acknowledged, "handed out after its acknowledgement"
                self.handed += 1
                # Recorded before the first pause, so also if this is cancelled.
                self.acknowledged.add(key)
                await message.ack(sync=self.chance.random() < 0.3)

    async def release(self, consumer: aio.AsyncConsumer) -> None:
        """Give back what a cancelled task had, and did not come to."""
        await consumer.release(
            [m for m in self.out if (m.queue, m.queue_offset) not in self.acknowledged]
        )
        self.out.clear()


def test_a_handler_that_is_cancelled_gives_its_message_back_and_one_may_use_and_close_the_store(
    tmp_path: Path,
) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 2)
        seen: list[int] = []
        consumer = await store.consumer("billing", "orders", workers=2, max_retries=0)

        async def handle(message: aio.AsyncMessage) -> None:
            seen.append(message.attempt)
            if len(seen) == 1:
                raise asyncio.CancelledError
            await store.topics()
            if len(seen) == 3:
                await store.close()

        await consumer.run(handle)
        assert seen == [1, 1, 1], "released, not refused"

    run(work, tmp_path)


def test_many_runs_that_are_cancelled_while_their_handlers_use_the_store_all_end(
    tmp_path: Path,
) -> None:
    """They waited in the few threads that the handlers needed."""

    async def work(store: aio.AsyncStore) -> None:
        put(store, 8)
        handling = [asyncio.Event() for _ in range(6)]
        may_go_on = asyncio.Event()

        async def one(number: int) -> None:
            async def handle(_: aio.AsyncMessage) -> None:
                handling[number].set()
                await may_go_on.wait()
                await store.topics()

            async with store.consumer(f"group{number}", "orders") as consumer:
                await consumer.run(handle)

        tasks = [asyncio.create_task(one(number)) for number in range(6)]
        for each in handling:
            await each.wait()
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in found} == {asyncio.CancelledError}

    run(work, tmp_path)


def test_a_consumer_that_is_made_for_a_cancelled_task_leaves_the_group(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        put(store, 4)

        async def join() -> None:
            await store.consumer("billing", "orders")

        for _ in range(5):
            task = asyncio.create_task(join())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with store.consumer("billing", "orders") as consumer:
            seen: set[bytes] = set()
            while len(seen) < 4:
                seen |= {message.body for message in await consumer.poll(4)}

    run(work, tmp_path)


def test_what_cannot_be_awaited_is_refused(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        async with store.consumer("billing", "orders") as consumer:
            with pytest.raises(ArgumentTypeError, match="an async function"):
                await consumer.run(print)  # type: ignore[arg-type] # on purpose
        with pytest.raises(ArgumentError, match="a consumer waits for new messages"):
            async for _ in store.scan("orders", follow=True):
                pass
        message = aio.AsyncMessage.__new__(aio.AsyncMessage)
        assert not hasattr(message, "message"), "no endless look-up"

    run(work, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_cancellations_neither_lose_nor_double_an_acknowledgement(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    crowd = Crowd(chance)

    async def work(store: aio.AsyncStore) -> None:
        consumer = await store.consumer("billing", "orders", ack_wait=1000)
        cancelled = number = 0
        while cancelled < CANCELLATIONS // 2:
            tasks = [asyncio.create_task(crowd.consume(consumer)) for _ in range(3)]
            for _ in range(chance.randint(0, 3)):
                await store.put("orders", b"%d" % number, queue=number % 4)
                number += 1
            for _ in range(chance.randint(0, 6)):
                await asyncio.sleep(0 if chance.random() < 0.8 else 0.0005)
            cancelled += sum(task.cancel() for task in tasks)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(each) for each in found} == {asyncio.CancelledError}, found
            await crowd.release(consumer)
        last = asyncio.create_task(crowd.consume(consumer))
        while len(crowd.acknowledged) < number:
            await asyncio.sleep(0)
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        assert {each.lag for each in await consumer.lag()} == {0}
        await consumer.close()
        async with store.consumer("billing", "orders") as again:
            assert await again.poll(timeout=0) == []
        assert crowd.handed == number

    run(work, tmp_path)


# --- prepared messages and transactions


def test_a_prepared_block_commits_and_an_exception_rolls_back(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        async with store.prepare("orders", b"1", group="g", tag="t") as prepared:
            assert (await store.topics()).get("orders") is None
        with pytest.raises(ValueError, match="no"):
            async with store.prepare("orders", b"2", group="g"):
                raise ValueError("no")
        receipt = await (await store.prepare("orders", b"3", group="g")).commit()
        assert (await store.at(receipt.log_offset)).body == b"3"
        await (await store.prepare("orders", b"4", group="g")).rollback()
        left = await store.prepare("orders", b"5", group="g")
        (shown,) = await store.prepared()
        assert shown.transaction_id == left.transaction_id
        found = [each async for each in store.scan("orders")]
        assert [each.body for each in found] == [b"1", b"3"]
        assert found[0].all_properties["UNIQ_KEY"] == prepared.transaction_id

    run(work, tmp_path)


def test_a_transaction_stores_messages_and_acknowledges_others_or_neither(tmp_path: Path) -> None:
    async def work(store: aio.AsyncStore) -> None:
        await store.put("in", b"1", queue=0)
        async with store.consumer("g", "in") as consumer:
            (message,) = await consumer.poll(1, 10)
            with pytest.raises(ZeroDivisionError):
                async with store.transaction() as tx:
                    await tx.ack(message)
                    await tx.put("out", b"a", queue=0)
                    raise ZeroDivisionError
            assert len(await consumer.pending()) == 1
            async with store.transaction() as tx:
                await tx.ack(message)
                await tx.put("out", b"a", queue=0, tag="t")
                await tx.put_many([Message("out", b"b", queue=0)])
                assert "out" not in await store.topics()
            assert len(tx.receipts) == 2
            assert {each.lag for each in await consumer.lag()} == {0}
            with pytest.raises(TransactionEndedError):
                await tx.put("out", b"c", queue=0)

    run(work, tmp_path)


class Slow:
    """A transaction whose end waits."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transaction, name)

    def __enter__(self) -> Self:
        self.transaction.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.begun.set()
        assert self.may_end.wait(60)
        self.transaction.__exit__(kind, error, trace)


def test_an_end_that_has_begun_is_completed_even_if_the_task_is_cancelled(tmp_path: Path) -> None:
    made: list[AsyncTransaction] = []

    async def work(store: aio.AsyncStore) -> None:
        tx = store.transaction()
        slow = Slow(tx.transaction)
        tx.transaction = slow

        async def end() -> None:
            async with tx:
                await tx.put("out", b"a", queue=0)

        task = asyncio.create_task(end())
        assert await asyncio.to_thread(slow.begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not tx.receipts
        slow.may_end.set()
        made.append(tx)

    run(work, tmp_path)
    assert len(made[0].receipts) == 1, "the end of the store waits for it"


# --- the thread that waits for all tasks


def test_a_message_rings_and_a_forgotten_listener_is_not_told(tmp_path: Path) -> None:
    async def work() -> None:
        with penstock.open(tmp_path / "s", environ={}) as store:
            bell = Bell(store.lowlevel.waiter())
            # The first rings at once: what came before its thread began to wait may be there.
            await asyncio.wait_for(bell.listen(), 10)
            forgotten, listener = bell.listen(), bell.listen()
            bell.forget(forgotten)
            store.put("orders", b"x", queue=0)
            await asyncio.wait_for(listener, 10)
            last = bell.listen()
            bell.close()
            await asyncio.wait_for(last, 10)
            assert forgotten.cancelled()

    asyncio.run(work())


def test_tasks_hear_of_messages_after_the_thread_for_them_could_not_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bell kept a thread that had never run, and no task was ever told again."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        with penstock.open(tmp_path / "s", environ={}) as store:
            bell = Bell(store.lowlevel.waiter())
            monkeypatch.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError, match="new thread"):
                bell.listen()
            monkeypatch.undo()
            await asyncio.wait_for(bell.listen(), 10)
            bell.close()

    asyncio.run(work())
