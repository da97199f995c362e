"""A store for asyncio."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from penstock.aio.consumer import AsyncConsumer, completed
from penstock.aio.prepared import AsyncPrepared
from penstock.aio.transaction import AsyncTransaction
from penstock.aio.waking import Bell
from penstock.contracts import ConsumerOptions, DelayedMessage
from penstock.message import Message, ReadResult, Receipt
from penstock.store.open import open_store
from penstock.store.store import Store

# Calls that wait for the disk; more threads would only wait for the same disk.
_THREADS = 4

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def open(path: str | Path, **settings: Any) -> "AsyncStore":  # noqa: A001 - as `penstock.open`
    """Open a store; the arguments are those of `penstock.open`."""
    return AsyncStore(await asyncio.to_thread(partial(open_store, path, **settings)))


class AsyncStore:
    """An open store, for the tasks of one event loop.

    Attributes:
        store: the store whose methods block.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._jobs = ThreadPoolExecutor(_THREADS, "penstock-aio")
        self._bell = Bell(store.waiter())

    async def call(
        self,
        method: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Return the result of a method of `store`, called in another thread, such as `await s.call(s.store.find, "t", "k")`.

        The call is completed even if the task is cancelled.
        """
        return await completed(self._jobs, partial(method, *args, **kwargs))

    async def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue: int | None = 0,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        partition_key: str | None = None,
        delay_ms: int = 0,
        deliver_at: float | datetime | None = None,
        wait: bool = True,
    ) -> Receipt:
        """Append one message; see `Store.put`. It is in the log even if the task is cancelled."""
        given: dict[str, Any] = {
            "queue": queue, "tag": tag, "keys": keys, "properties": properties,
            "delay_level": delay_level, "partition_key": partition_key, "delay_ms": delay_ms,
            "deliver_at": deliver_at,
        }  # fmt: skip
        if wait and self.store.puts_wait:
            # Shares the syncs and copies of other puts, without a thread that waits.
            receipt = self.store.put(topic, body, **given, wait=False)
            return await asyncio.shield(asyncio.wrap_future(self.store.when_settled(receipt)))
        return self.store.put(topic, body, **given, wait=False)

    async def put_many(
        self, messages: Iterable[Message], *, atomic: bool = False
    ) -> Sequence[Receipt]:
        """Append many messages; see `Store.put_many`."""
        return await self.call(self.store.put_many, list(messages), atomic=atomic)

    def transaction(self) -> AsyncTransaction:
        """Return a transaction, for an `async with` block; see `Store.transaction`."""
        return AsyncTransaction(self.store.transaction(), self._jobs)

    async def read(
        self, topic: str, queue: int = 0, offset: int = 0, limit: int = 32, tag: str = "*"
    ) -> ReadResult:
        """Read messages of a queue; see `Store.read`."""
        return await self.call(self.store.read, topic, queue, offset, limit, tag)

    async def flush(self) -> int:
        """Make all messages put so far durable; see `Store.flush`."""
        return await self.call(self.store.flush)

    async def consumer(
        self, group: str, topics: str | Iterable[str], **options: Unpack[ConsumerOptions]
    ) -> AsyncConsumer:
        """Return a consumer of a group; see `Store.consumer`. `workers` is for `Consumer.run` only."""
        made = await self.call(self.store.consumer, group, topics, **options)
        return AsyncConsumer(made, self._bell, self._jobs)

    async def prepare(
        self,
        topic: str,
        body: bytes,
        *,
        group: str,
        queue: int | None = 0,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        wait: bool = True,
    ) -> AsyncPrepared:
        """Store a message that readers see only once it is committed; see `Store.prepare`."""
        made = await self.call(
            self.store.prepare, topic, body, group=group, queue=queue, tag=tag, keys=keys,
            properties=properties, partition_key=partition_key, wait=wait,
        )  # fmt: skip
        return AsyncPrepared(made, self._jobs)

    async def prepared(self) -> list[AsyncPrepared]:
        """Return the messages that are prepared and not finished; see `Store.prepared`."""
        return [AsyncPrepared(each, self._jobs) for each in await self.call(self.store.prepared)]

    async def cancel_delayed(self, message_id: str | Receipt) -> bool:
        """Cancel a message that waits for its time, durably; see `Store.cancel_delayed`."""
        return await self.call(self.store.cancel_delayed, message_id)

    async def delayed(self) -> list[DelayedMessage]:
        """Return the messages that wait for their time; see `Store.delayed`."""
        return await self.call(self.store.delayed)

    async def close(self) -> None:
        """Close the store; see `Store.close`."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._close))

    def _close(self) -> None:
        self._bell.close()
        self._jobs.shutdown()
        self.store.close()

    async def __aenter__(self) -> Self:
        """Return the store."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the store."""
        await self.close()
