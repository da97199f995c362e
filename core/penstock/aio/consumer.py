"""A consumer for asyncio: wraps the one that `Store.consumer` returns."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from penstock.aio.waking import Bell
from penstock.contracts import ConsumedMessage, Consumer, Pending
from penstock.contracts.consumer import AnsweredMessages
from penstock.errors import ConsumerClosedError, PenstockError
from penstock.format import arguments

Result = TypeVar("Result")

# Besides being told, a task looks this often: messages come again by time (`ack_wait`).
_LOOK_S = 1.0
_TIMEOUT_MAX_S = 365 * 86_400.0


async def completed(jobs: Executor, call: Callable[[], Result]) -> Result:
    """Return the result of a call in another thread; it is completed even if the task is cancelled."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(jobs, call))


class AsyncConsumer:
    """A member of a consumer group, or a broadcast reader, for the tasks of one event loop; see `contracts.Consumer`.

    `async for` hands out messages without end. As a context manager, it refuses the message that the task got last if an
    `Exception` leaves the block, and releases everything else; so it does everything if the task is cancelled.

    Attributes:
        consumer: the consumer whose methods block.
    """

    def __init__(self, consumer: Consumer, bell: Bell, jobs: Executor) -> None:
        self.consumer = consumer
        self._bell = bell
        self._jobs = jobs
        self._hands: WeakKeyDictionary[asyncio.Task[Any], ConsumedMessage] = WeakKeyDictionary()

    def __aiter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __anext__(self) -> ConsumedMessage:
        """Hand out a message, waiting for it."""
        try:
            return (await self.poll())[0]
        except ConsumerClosedError:
            raise StopAsyncIteration from None

    async def poll(
        self,
        limit: int = 1,
        timeout: float | None = None,
    ) -> Sequence[ConsumedMessage]:
        """Hand out up to `limit` messages; waits up to `timeout` seconds (None: without end) for the first one."""
        loop = asyncio.get_running_loop()
        if timeout is not None:
            timeout = arguments.number("poll", "timeout", timeout, 0, _TIMEOUT_MAX_S)
        until = None if timeout is None else loop.time() + timeout
        while True:
            found = self.consumer.take(limit)
            if not found:
                found = await self._looked(limit, until)
            if found:
                self._keep_in_hand(found)
                return found
            if until is not None and loop.time() >= until:
                return []

    async def _looked(self, limit: int, until: float | None) -> Sequence[ConsumedMessage]:
        """Return messages that are stored; if there are none, wait until there may be some, and return none."""
        listener = self._bell.listen()
        try:
            found = await self._gathered(limit)
            if not found:
                left = _LOOK_S
                if until is not None:
                    left = min(left, max(until - asyncio.get_running_loop().time(), 0))
                await asyncio.wait([listener], timeout=left)
            return found
        finally:
            self._bell.forget(listener)

    async def _gathered(self, limit: int) -> Sequence[ConsumedMessage]:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._jobs, self.consumer.gather, limit)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            # Nobody gets what it finds.
            job.add_done_callback(self._release_found)
            raise

    def _release_found(self, job: "asyncio.Future[Sequence[ConsumedMessage]]") -> None:
        if not job.cancelled() and job.exception() is None:
            self.consumer.release(job.result())

    def _keep_in_hand(self, found: Sequence[ConsumedMessage]) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._hands.pop(task, None)
            if len(found) == 1:
                self._hands[task] = found[0]

    async def ack(self, messages: AnsweredMessages, *, sync: bool = True) -> None:
        """Acknowledge one message or many: recorded before the first pause of the task, on disk when this returns.

        See `contracts.Consumer.ack`.
        """
        given = messages if hasattr(messages, "stored") else list(messages)
        if sync:
            # A queue that is given back meanwhile is synced by that; one that is lost raises.
            await completed(self._jobs, self.consumer.begin_ack(given))
        else:
            self.consumer.ack(given, sync=False)

    async def nack(self, messages: AnsweredMessages, *, delay_level: int | None = None) -> None:
        """Refuse messages; see `contracts.Consumer.nack`."""
        await completed(self._jobs, partial(self.consumer.nack, messages, delay_level=delay_level))

    def release(self, messages: AnsweredMessages) -> None:
        """Give messages back unanswered; see `contracts.Consumer.release`."""
        self.consumer.release(messages)

    def extend(self, messages: AnsweredMessages) -> None:
        """Restart `ack_wait`; see `contracts.Consumer.extend`."""
        self.consumer.extend(messages)

    async def seek(
        self,
        topic: str,
        queue: int | None = None,
        *,
        offset: int | None = None,
        time_ms: float | datetime | None = None,
    ) -> None:
        """Continue elsewhere; see `contracts.Consumer.seek`."""
        call = partial(self.consumer.seek, topic, queue, offset=offset, time_ms=time_ms)
        await completed(self._jobs, call)

    def pause(self, *topics: str) -> None:
        """Hand out nothing more of these topics, or of all; see `contracts.Consumer.pause`."""
        self.consumer.pause(*topics)

    def resume(self, *topics: str) -> None:
        """Undo `pause`."""
        self.consumer.resume(*topics)

    async def lag(self) -> dict[tuple[str, int], int]:
        """Return how many messages are not acknowledged; see `contracts.Consumer.lag`."""
        return await completed(self._jobs, self.consumer.lag)

    def assignment(self) -> list[tuple[str, int]]:
        """Return the queues that this consumer has."""
        return self.consumer.assignment()

    def pending(self) -> list[Pending]:
        """Return the messages that are handed out and not answered."""
        return self.consumer.pending()

    async def close(self) -> None:
        """Release everything that was not answered and leave the group."""
        await completed(self._jobs, self.consumer.close)

    async def __aenter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception in the block, refuse the message in hand first."""
        task = asyncio.current_task()
        message = None if task is None else self._hands.get(task)
        if isinstance(error, Exception) and message is not None:
            # The exception of the block is the one to be seen.
            with contextlib.suppress(PenstockError, OSError):
                await self.nack(message)
        try:
            await self.close()
        except (PenstockError, OSError):
            if error is None:
                raise
