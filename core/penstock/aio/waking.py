"""One thread that waits for new messages of a store, on behalf of all tasks."""

import asyncio
import contextlib
import threading

from penstock.contracts import MessageWaiter
from penstock.escape import get_logger
from penstock.runtime.workers import Worker

logger = get_logger(__name__)

# A rest is ended by a wake; this only bounds how long a thread outlives its last task.
_REST_S = 1.0
_STOP_LIMIT_S = 60.0


class Bell:
    """Tells tasks that there may be something new. Safe from any thread; its thread starts with the first task that waits."""

    def __init__(self, waiter: MessageWaiter) -> None:
        self._waiter = waiter
        self._lock = threading.Lock()
        self._listeners: set[asyncio.Future[None]] = set()
        self._worker: Worker | None = None
        self._is_closed = False

    def listen(self) -> "asyncio.Future[None]":
        """Return a future that is done once there may be something that was not there before this call; call `forget`."""
        listener = asyncio.get_running_loop().create_future()
        with self._lock:
            self._listeners.add(listener)
            if self._worker is None and not self._is_closed:
                self._worker = Worker("penstock-aio-wait", self._step, self._failed, _STOP_LIMIT_S)
        if self._worker is not None:
            # If the thread rests already, it asked before this call, and the next step comes when it wakes.
            self._worker.wake()
        return listener

    def forget(self, listener: "asyncio.Future[None]") -> None:
        """Stop telling a task."""
        with self._lock:
            self._listeners.discard(listener)
        listener.cancel()

    def _step(self) -> float | None:
        self._waiter.ask()
        # What came before `ask` ends no rest, so those that wait look again.
        self._ring()
        self._waiter.rest(_REST_S)
        with self._lock:
            return 0 if self._listeners else None

    def _ring(self) -> None:
        with self._lock:
            listeners, self._listeners = self._listeners, set()
        for listener in listeners:
            # The task's loop may have ended.
            with contextlib.suppress(RuntimeError):
                listener.get_loop().call_soon_threadsafe(_tell, listener)

    def _failed(self, name: str, error: Exception) -> None:
        logger.error("%s ended: %s; tasks look for messages once a second", name, error)
        self._ring()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            worker = self._worker
        if worker is not None:
            worker.tell()
            self._waiter.interrupt()
            worker.stop()
        self._ring()


def _tell(listener: "asyncio.Future[None]") -> None:
    if not listener.done():
        listener.set_result(None)
