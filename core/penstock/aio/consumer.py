"""A consumer for asyncio: wraps the one that `Store.consumer` returns."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Executor
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from weakref import WeakKeyDictionary

from penstock.aio.calls import Bell, Wrapper, awaited, completed, in_own_thread, made
from penstock.contracts import ConsumedMessage, Consumer, Pending
from penstock.contracts.messaging import AnsweredMessages
from penstock.errors import ArgumentTypeError, ConsumerClosedError, PenstockError, StoreClosedError
from penstock.format import arguments

# Besides being told, a task looks this often: messages come again by time (`ack_wait`).
_LOOK_S = 1.0
_TIMEOUT_MAX_S = 365 * 86_400.0


class AsyncMessage:
    """A message that an `AsyncConsumer` delivered: the attributes of a `ConsumedMessage`, and answers to be awaited.

    Attributes:
        message: the message whose answers block.
    """

    __slots__ = ("_consumer", "message")

    def __init__(self, message: ConsumedMessage, consumer: "AsyncConsumer") -> None:
        self.message = message
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the message."""
        if name.startswith("_") or name == "message":
            raise AttributeError(name)
        return getattr(self.message, name)

    def __dir__(self) -> list[str]:
        """Return the names of this class, and those of the message."""
        return sorted({*super().__dir__(), *dir(self.message)})

    def __repr__(self) -> str:
        return repr(self.message)

    async def ack(self, *, sync: bool = True) -> None:
        """Acknowledge this message; see `AsyncConsumer.ack`."""
        await self._consumer.ack(self, sync=sync)

    async def nack(
        self, *, delay: float | timedelta | None = None, reason: str | BaseException | None = None
    ) -> None:
        """Nack this message, so that it is retried; see `Consumer.nack`."""
        await self._consumer.nack(self, delay=delay, reason=reason)

    async def release(self) -> None:
        """Give this message back unanswered; see `Consumer.release`."""
        self.message.release()

    async def extend(self) -> None:
        """Restart `ack_wait` for this message."""
        self.message.extend()


# What the methods that answer take: one message or many.
Answered: TypeAlias = AsyncMessage | Iterable[AsyncMessage]
# Whether this task, or one that it came from, handles a message of `run`: then nothing waits for the end of handlers.
_handling: ContextVar[bool] = ContextVar("penstock_handling", default=False)


def is_handling() -> bool:
    """Return whether this task handles a message of `AsyncConsumer.run`."""
    return _handling.get()


def plain(messages: Answered) -> AnsweredMessages:
    """Return the messages whose answers block."""
    if isinstance(messages, AsyncMessage):
        return messages.message
    if hasattr(messages, "stored"):
        return cast("ConsumedMessage", messages)
    many = cast("Iterable[Any]", messages)
    return [each.message if isinstance(each, AsyncMessage) else each for each in many]


class AsyncConsumer(Wrapper):
    """A member of a consumer group, or a broadcast reader, for the tasks of one event loop; see `contracts.Consumer`.

    `async for` delivers messages without end. As a context manager, it nacks the message that the task got last if an
    `Exception` leaves the block, and releases everything else; if the task is cancelled, it releases everything.

    Attributes:
        consumer: the consumer whose methods block.
    """

    def __init__(self, consumer: Consumer, bell: Bell, jobs: Executor) -> None:
        super().__init__(consumer, jobs)
        self.consumer = consumer
        self._bell = bell
        self._hands: WeakKeyDictionary[asyncio.Task[Any], AsyncMessage] = WeakKeyDictionary()

    lag = awaited(Consumer.lag)
    seek = awaited(Consumer.seek)

    def __aiter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __anext__(self) -> AsyncMessage:
        """Deliver a message, waiting for it."""
        try:
            return (await self.poll())[0]
        except (ConsumerClosedError, StoreClosedError):
            raise StopAsyncIteration from None

    async def poll(
        self,
        limit: int = 1,
        timeout: float | None = None,
    ) -> Sequence[AsyncMessage]:
        """Deliver up to `limit` messages; waits up to `timeout` seconds (None: without end) for the first one."""
        loop = asyncio.get_running_loop()
        if timeout is not None:
            timeout = arguments.seconds("poll", "timeout", timeout, 0, _TIMEOUT_MAX_S)
        until = None if timeout is None else loop.time() + timeout
        while True:
            found = self.consumer.take(limit)
            if not found:
                found = await self._looked(limit, until)
            if found:
                return self._handed(found)
            if until is not None and loop.time() >= until:
                return []

    async def _looked(self, limit: int, until: float | None) -> Sequence[ConsumedMessage]:
        """Return messages that are stored; if there are none, wait until there may be some, and return none."""
        listener = self._bell.listen()
        try:
            gather = partial(self.consumer.gather, limit)
            found = await made(self._jobs, gather, self.consumer.release)
            if not found:
                left = _LOOK_S
                if until is not None:
                    left = min(left, max(until - asyncio.get_running_loop().time(), 0))
                await asyncio.wait([listener], timeout=left)
            return found
        finally:
            self._bell.forget(listener)

    def _handed(self, found: Sequence[ConsumedMessage]) -> Sequence[AsyncMessage]:
        handed = [AsyncMessage(each, self) for each in found]
        task = asyncio.current_task()
        if task is not None:
            self._hands.pop(task, None)
            if len(handed) == 1:
                self._hands[task] = handed[0]
        return handed

    async def run(
        self,
        handler: Callable[[AsyncMessage], Coroutine[Any, Any, object]],
        *,
        handler_timeout: float | None = None,
    ) -> None:
        """Await `handler` for each message, in up to `workers` tasks, until `close`: acks if it returns, else nacks.

        See `contracts.Consumer.run`; no signal ends it. If the task is cancelled, the consumer is closed, and this ends
        once the handlers at work have returned: they are not cancelled. A handler that ends with a `CancelledError` of
        its own releases its message, which is delivered again, without being counted as a retry.
        """
        if not (iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)):
            raise ArgumentTypeError("run", "handler", handler, "an async function")
        loop = asyncio.get_running_loop()

        async def handle(message: AsyncMessage) -> None:
            _handling.set(True)
            await handler(message)

        def call(message: ConsumedMessage) -> None:
            handling = asyncio.run_coroutine_threadsafe(handle(AsyncMessage(message, self)), loop)
            try:
                handling.result()
            except CancelledError:
                message.release()

        job = in_own_thread(partial(self.consumer.run, call, handler_timeout=handler_timeout))
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            # The cancellation is what the caller is to see.
            with contextlib.suppress(PenstockError, OSError):
                await asyncio.shield(in_own_thread(self.consumer.close))
            with contextlib.suppress(PenstockError, OSError):
                await asyncio.shield(job)
            raise

    async def ack(self, messages: Answered, *, sync: bool = True) -> None:
        """Acknowledge one message or many: recorded before the first pause of the task, on disk when this returns.

        See `contracts.Consumer.ack`.
        """
        given = plain(messages)
        if sync:
            # A queue that is given back meanwhile is synced by that; one that is lost raises.
            await completed(self._jobs, self.consumer.begin_ack(given))
        else:
            self.consumer.ack(given, sync=False)

    async def nack(
        self,
        messages: Answered,
        *,
        delay: float | timedelta | None = None,
        reason: str | BaseException | None = None,
    ) -> None:
        """Nack messages; see `contracts.Consumer.nack`."""
        call = partial(self.consumer.nack, plain(messages), delay=delay, reason=reason)
        await completed(self._jobs, call)

    async def release(self, messages: Answered) -> None:
        """Give messages back unanswered; see `contracts.Consumer.release`."""
        self.consumer.release(plain(messages))

    async def extend(self, messages: Answered) -> None:
        """Restart `ack_wait`; see `contracts.Consumer.extend`."""
        self.consumer.extend(plain(messages))

    async def pause(self, *topics: str) -> None:
        """Deliver nothing more of these topics, or of all; see `contracts.Consumer.pause`."""
        self.consumer.pause(*topics)

    async def resume(self, *topics: str) -> None:
        """Undo `pause`."""
        self.consumer.resume(*topics)

    async def assignment(self) -> list[tuple[str, int]]:
        """Return the queues that this consumer has."""
        return self.consumer.assignment()

    async def pending(self) -> list[Pending]:
        """Return the messages that are delivered and not answered."""
        return self.consumer.pending()

    async def close(self) -> None:
        """Release everything that was not answered and leave the group; a handler of `run` does not wait for that."""
        closing = in_own_thread(self.consumer.close)
        if not is_handling():
            await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception in the block, nack the message in hand first."""
        task = asyncio.current_task()
        message = None if task is None else self._hands.get(task)
        if isinstance(error, Exception) and message is not None:
            # The exception of the block is the one to be seen.
            with contextlib.suppress(PenstockError, OSError):
                await self.nack(message, reason=error)
        try:
            await self.close()
        except (PenstockError, OSError):
            if error is None:
                raise
