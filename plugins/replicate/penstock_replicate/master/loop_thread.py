"""A thread that runs an event loop, and how other threads wake it: once for any number of calls that come while it is busy."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_JOIN_S = 10.0
# The clock of event loops. Sockets and what waits for them live in real time, also where a test owns the store's clock.
monotonic_s = time.monotonic


class LoopThread:
    """One event loop in a thread of its own.

    `ping` may be called from any thread, and from a signal handler; the rest by the thread that opens or closes the store.

    Args:
        name: the thread's name.
        on_ping: called in the loop after a `ping`; everything that was done before the call of `ping` is visible to it.
    """

    def __init__(self, name: str, on_ping: Callable[[], None]) -> None:
        self._on_ping = on_ping
        self._pinged = False
        self._ended = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def ping(self) -> None:
        """Call `on_ping` soon; does nothing if that is under way."""
        if self._pinged or self._ended:
            return
        self._pinged = True
        try:
            self.loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            # The loop was closed meanwhile; `stop` answers those who wait.
            self._ended = True

    def _answer(self) -> None:
        # First: a ping from here on comes again.
        self._pinged = False
        self._on_ping()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop, and return or raise what it does; `TimeoutError` if that takes longer than `timeout_s`."""
        if self._ended or not self._thread.is_alive():
            work.close()
            raise RuntimeError("the event loop has ended")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self) -> None:
        """End all tasks and the thread. May be called more than once."""
        with contextlib.suppress(TimeoutError, RuntimeError):
            self.call(self._wind_up(), _JOIN_S)
        self._ended = True
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_JOIN_S)

    async def _wind_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Transports that were aborted say so in the next round.
        await asyncio.sleep(0)
        await self.loop.shutdown_default_executor()


class TaskBell:
    """Wakes one task. What is rung while it does not wait ends its next wait at once. Used in the loop's thread only."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def silence(self) -> None:
        """Forget rings, before looking for what they were about."""
        self._rung = False

    async def wait(self, timeout_s: float) -> None:
        """Return after a ring since `silence`, or after `timeout_s` seconds."""
        if self._rung:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = loop.call_later(timeout_s, self.ring)
        try:
            await self._waiter
        finally:
            alarm.cancel()
            self._waiter = None
