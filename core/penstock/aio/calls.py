"""Awaits calls that block, in a few threads that the calls of a store share; and lets tasks wait for messages."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from penstock.contracts import MessageWaiter
from penstock.errors import ArgumentError, StoreClosedError
from penstock.escape import get_logger
from penstock.runtime.workers import Worker

logger = get_logger(__name__)


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# What one call fetches of an iterator: so many items, or of messages so many bytes.
_FETCHED, _FETCHED_BYTES = 100, 1 << 20
_NOTHING: Mapping[str, str] = {}


def _submitted(jobs: Executor, call: Callable[[], Result]) -> Future[Result]:
    try:
        return jobs.submit(call)
    except RuntimeError as error:
        # The threads end with the store.
        raise StoreClosedError from error


async def completed(jobs: Executor, call: Callable[[], Result]) -> Result:
    """Return the result of a call in another thread; it is completed even if the task is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(_submitted(jobs, call)))


def in_own_thread(call: Callable[[], Result]) -> "asyncio.Future[Result]":
    """Call a function that takes long, in a thread that it has for itself; return its future result."""
    return asyncio.wrap_future(_begun(call))


def _begun(call: Callable[[], Result]) -> Future[Result]:
    thread = ThreadPoolExecutor(1, "penstock-aio-own")
    try:
        return thread.submit(call)
    finally:
        thread.shutdown(wait=False)


async def made(
    jobs: Executor, call: Callable[[], Result], undo: Callable[[Result], object]
) -> Result:
    """Return what a call makes; it is undone if the task is cancelled meanwhile, since nobody has it then."""
    job = _submitted(jobs, call)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:

        def undo_it() -> None:
            try:
                if job.exception() is None:
                    undo(job.result())
            except Exception:
                logger.exception("what a cancelled call made could not be undone")

        if not job.cancel():
            # Not in the loop, which may end before the call does.
            _begun(undo_it)
        raise


class Wrapper:
    """An object whose methods block, for the tasks of one event loop; see `awaited` and `iterated`."""

    def __init__(self, inner: Any, jobs: Executor) -> None:
        self._inner = inner
        self._jobs = jobs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"


def awaited(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]:
    """Return the coroutine function that calls a method of the wrapped object in another thread."""

    @functools.wraps(method)
    async def call(self: Wrapper, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        blocking: Callable[..., Result] = getattr(self._inner, method.__name__)
        return await completed(self._jobs, functools.partial(blocking, *args, **kwargs))

    return call


def iterated(
    method: Callable[Concatenate[Any, Arguments], Iterator[Result]],
    *,
    most: int = _FETCHED,
    refused: Mapping[str, str] = _NOTHING,
) -> Callable[Concatenate[Any, Arguments], AsyncGenerator[Result, None]]:
    """Return the function whose `async for` fetches the items of the wrapped object's iterator, up to `most` at a time.

    `refused` says of an argument that would never end in a thread what it must be.
    """

    @functools.wraps(method)
    async def call(
        self: Wrapper, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncGenerator[Result, None]:
        for name, expected in refused.items():
            if kwargs.get(name):
                raise ArgumentError(method.__name__, name, kwargs[name], expected)
        blocking: Callable[..., Iterator[Result]] = getattr(self._inner, method.__name__)
        source = await completed(self._jobs, functools.partial(blocking, *args, **kwargs))
        fetch = functools.partial(_some_of, source, most)
        is_over, error = False, None
        while not is_over:
            found, is_over, error = await completed(self._jobs, fetch)
            for each in found:
                yield each
        if error is not None:
            raise error

    return call


def _some_of(source: Iterator[Result], most: int) -> tuple[list[Result], bool, Exception | None]:
    """Return the next items, whether they are the last, and the error that ended them, after which they still count."""
    found: list[Result] = []
    size = 0
    try:
        for each in source:
            found.append(each)
            size += getattr(each, "size", 0)
            if len(found) >= most or size >= _FETCHED_BYTES:
                return found, False, None
    except Exception as error:
        return found, True, error
    return found, True, None


_AWAITED = "this is for `async with`, or to be awaited"


class Entered(Generic[Result]):
    """The result of a coroutine, to be awaited or entered with `async with`."""

    def __init__(self, making: Coroutine[Any, Any, Result]) -> None:
        self._making = making
        self._made: Any = None

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._making.__await__()

    def __enter__(self) -> NoReturn:
        self._making.close()
        raise TypeError(_AWAITED)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{_AWAITED}; {name!r} is an attribute of what that gives")

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Result:
        self._made = await self._making
        entered: Result = await self._made.__aenter__()
        return entered

    async def __aexit__(self, *error: object) -> None:
        await self._made.__aexit__(*error)


# A rest is ended by a wake; this only bounds how long a thread outlives its last task.
_REST_S = 1.0
_STOP_LIMIT_S = 60.0


class Bell:
    """Tells tasks that there may be something new. Safe from any thread; its own starts with the first waiting task."""

    def __init__(self, waiter: MessageWaiter) -> None:
        self._waiter = waiter
        self._lock = threading.Lock()
        self._listeners: set[asyncio.Future[None]] = set()
        self._worker: Worker | None = None
        self._is_closed = False

    def listen(self) -> "asyncio.Future[None]":
        """Return a future that is done once there may be something newer than this call; call `forget`."""
        listener = asyncio.get_running_loop().create_future()
        with self._lock:
            self._listeners.add(listener)
            if not self._is_closed and (self._worker is None or not self._worker.is_alive):
                self._worker = Worker("penstock-aio-wait", self._step, self._failed, _STOP_LIMIT_S)
                self._worker.start()
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
                listener.get_loop().call_soon_threadsafe(_wake_task, listener)

    def _failed(self, name: str, error: BaseException) -> None:
        logger.error("%s ended: %s; tasks look for messages once a second", name, error)
        self._ring()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            worker = self._worker
        if worker is not None:
            worker.request_stop()
            self._waiter.interrupt()
            worker.stop()
        self._ring()


def _wake_task(listener: "asyncio.Future[None]") -> None:
    if not listener.done():
        listener.set_result(None)
