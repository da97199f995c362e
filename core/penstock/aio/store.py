"""A store for asyncio, and its transactions and prepared messages: each wraps what `Store` returns."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack
from weakref import WeakSet

from penstock.aio.calls import (
    Arguments,
    Bell,
    Entered,
    Result,
    Wrapper,
    awaited,
    completed,
    in_own_thread,
    iterated,
    made,
)
from penstock.aio.consumer import Answered, AsyncConsumer, is_handling, plain
from penstock.contracts import ConsumerOptions, Prepared, PutOptions, Transaction
from penstock.message import Message, Receipt
from penstock.recovery.log_end import RecoveryReport
from penstock.store.open import open_store
from penstock.store.store import Store


class AsyncPrepared(Wrapper):
    """A prepared message, for the tasks of one event loop; see `contracts.Prepared`.

    As a context manager, it is finished at the block's end as `contracts.Prepared` says, also if the task is cancelled.

    Attributes:
        prepared: the prepared message whose methods block.
    """

    def __init__(self, prepared: Prepared, jobs: Executor) -> None:
        super().__init__(prepared, jobs)
        self.prepared = prepared

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the prepared message, such as `transaction_id`."""
        if name.startswith("_") or name == "prepared":
            raise AttributeError(name)
        return getattr(self.prepared, name)

    async def commit(self, *, wait: bool = True) -> Receipt:
        """Put the message into its topic, even if the task is cancelled; see `contracts.Prepared.commit`."""
        return await completed(self._jobs, partial(self.prepared.commit, wait=wait))

    async def rollback(self) -> None:
        """Drop the message; see `contracts.Prepared.rollback`."""
        await completed(self._jobs, self.prepared.rollback)

    async def __aenter__(self) -> Self:
        """Return the prepared message; no check-back is asked about it during the block."""
        self.prepared.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back."""
        await completed(self._jobs, partial(self.prepared.__exit__, kind, error, trace))


class AsyncTransaction(Wrapper):
    """Messages that are stored together at the end of an `async with` block, or not; see `contracts.Transaction`.

    Attributes:
        transaction: the transaction whose end blocks.
    """

    def __init__(self, transaction: Transaction, jobs: Executor) -> None:
        super().__init__(transaction, jobs)
        self.transaction = transaction

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts of the messages, once the block has ended."""
        return self.transaction.receipts

    async def put(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> None:
        """Check a message, and add it; see `Transaction.put`. There is no pause of the task."""
        self.transaction.put(topic, body, **options)

    async def put_many(self, messages: Iterable[Message]) -> None:
        """Check messages, and add them; see `Transaction.put_many`. There is no pause of the task."""
        self.transaction.put_many(messages)

    async def ack(self, messages: Answered) -> None:
        """Acknowledge messages at the end; see `Transaction.ack`. There is no pause of the task."""
        self.transaction.ack(plain(messages))

    async def __aenter__(self) -> Self:
        """Begin."""
        self.transaction.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Store all messages, or drop them after an exception; completed even if the task is cancelled."""
        end = partial(self.transaction.__exit__, kind, error, trace)
        if kind is None:
            await completed(self._jobs, end)
        else:
            end()


# Calls that wait for the disk; more threads would only wait for the same disk.
_THREADS = 4
_FOLLOW = "left out: a consumer waits for new messages, `async for message in consumer`"


def open(path: str | Path, **settings: Any) -> "Entered[AsyncStore]":  # noqa: A001 - as `penstock.open`
    """Open a store: `async with aio.open(path) as store`, or `await`; the arguments are those of `penstock.open`."""

    async def opened() -> AsyncStore:
        thread = ThreadPoolExecutor(1, "penstock-aio-open")
        try:
            call = partial(open_store, path, **settings)
            return AsyncStore(await made(thread, call, Store.close))
        finally:
            # If the task is cancelled, the opening goes on; the loop does not wait for it.
            thread.shutdown(wait=False)

    return Entered(opened())


class AsyncStore(Wrapper):
    """An open store, for the tasks of one event loop. The calls are those of `Store`; iterators are for `async for`.

    Attributes:
        store: the store whose methods block.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, ThreadPoolExecutor(_THREADS, "penstock-aio"))
        self.store = store
        self._bell = Bell(store.lowlevel.waiter())
        self._consumers: WeakSet[AsyncConsumer] = WeakSet()
        self._closing: asyncio.Future[None] | None = None

    alter_topic = awaited(Store.alter_topic)
    at = awaited(Store.at)
    cancel_delayed = awaited(Store.cancel_delayed)
    commit_offset = awaited(Store.commit_offset)
    committed_offset = awaited(Store.committed_offset)
    create_topic = awaited(Store.create_topic)
    delayed = awaited(Store.delayed)
    delete_group = awaited(Store.delete_group)
    delete_topic = awaited(Store.delete_topic)
    discard_before = awaited(Store.discard_before)
    find = awaited(Store.find)
    flush = awaited(Store.flush)
    get = awaited(Store.get)
    groups = awaited(Store.groups)
    max_offset = awaited(Store.max_offset)
    min_offset = awaited(Store.min_offset)
    offset_at = awaited(Store.offset_at)
    put_arrow = awaited(Store.put_arrow)
    put_many = awaited(Store.put_many)
    read = awaited(Store.read)
    retain = awaited(Store.retain)
    space = awaited(Store.space)
    stats = awaited(Store.stats)
    to_arrow = awaited(Store.to_arrow)
    to_reader = iterated(Store.to_reader, most=1)
    topic_configs = awaited(Store.topic_configs)
    topics = awaited(Store.topics)
    verify = iterated(Store.verify, most=1)
    scan = iterated(Store.scan, refused={"follow": _FOLLOW})

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self.store.path

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only."""
        return self.store.read_only

    @property
    def recovery(self) -> RecoveryReport | None:
        """What the opening found and did; None if the store was opened read-only."""
        return self.store.recovery

    async def call(
        self,
        method: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Return the result of any function, called in a thread of this store's calls; completed even if cancelled."""
        return await completed(self._jobs, partial(method, *args, **kwargs))

    async def put(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> Receipt:
        """Append one message; see `Store.put`. It is in the log even if the task is cancelled."""
        given: dict[str, Any] = {**options}
        if given.pop("wait", True) and self.store.lowlevel.puts_wait:
            # Shares the syncs of other puts, without a thread that waits.
            return await self.submit(topic, body, **given)
        return self.store.put(topic, body, **given, wait=False)

    async def submit(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> Receipt:
        """Append one message, and return once it is durable, under any flush policy; see `Store.submit`."""
        return await asyncio.shield(asyncio.wrap_future(self.store.submit(topic, body, **options)))

    def transaction(self) -> AsyncTransaction:
        """Return a transaction, for an `async with` block; see `Store.transaction`."""
        return AsyncTransaction(self.store.transaction(), self._jobs)

    def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> Entered[AsyncConsumer]:
        """Return a consumer of a group, for `async with`, or `await`; see `Store.consumer`."""

        async def joined() -> AsyncConsumer:
            call = partial(self.store.consumer, group, topics, **options)
            inner = await made(self._jobs, call, lambda late: late.close())
            self._consumers.add(consumer := AsyncConsumer(inner, self._bell, self._jobs))
            return consumer

        return Entered(joined())

    def prepare(
        self, topic: str, body: bytes, *, group: str, **options: Any
    ) -> Entered[AsyncPrepared]:
        """Store a message that readers see once it is committed, for `async with` or `await`; see `Store.prepare`."""

        async def stored() -> AsyncPrepared:
            call = partial(self.store.prepare, topic, body, group=group, **options)
            return AsyncPrepared(
                await made(self._jobs, call, lambda late: late.rollback()), self._jobs
            )

        return Entered(stored())

    async def prepared(self) -> list[AsyncPrepared]:
        """Return the messages that are prepared and not finished; see `Store.prepared`."""
        return [AsyncPrepared(each, self._jobs) for each in await self.call(self.store.prepared)]

    async def close(self) -> None:
        """Close the store; see `Store.close`. A handler of `AsyncConsumer.run` does not wait for that."""
        if self._closing is None:
            self._closing = in_own_thread(self._close)
        if not is_handling():
            await asyncio.shield(self._closing)

    def _close(self) -> None:
        self._bell.close()
        # Handlers that are at work need the threads.
        for consumer in list(self._consumers):
            consumer.consumer.close()
        self._jobs.shutdown()
        self.store.close()

    async def __aenter__(self) -> Self:
        """Return the store."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the store."""
        await self.close()
