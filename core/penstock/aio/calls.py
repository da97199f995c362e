"""How calls that block become calls of a coroutine: in a few threads that a store's calls share, and completed if cancelled."""

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# So many items of an iterator are fetched in one call.
_FETCHED = 100


async def completed(jobs: Executor, call: Callable[[], Result]) -> Result:
    """Return the result of a call in another thread; it is completed even if the task is cancelled."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(jobs, call))


class Wrapper:
    """An object whose methods block, for the tasks of one event loop; see `awaited` and `iterated`."""

    def __init__(self, inner: Any, jobs: Executor) -> None:
        self._inner = inner
        self._jobs = jobs


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
) -> Callable[Concatenate[Any, Arguments], AsyncIterator[Result]]:
    """Return the function whose `async for` fetches what an iterator of the wrapped object gives, some at a time."""

    @functools.wraps(method)
    async def call(
        self: Wrapper, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncIterator[Result]:
        blocking: Callable[..., Iterator[Result]] = getattr(self._inner, method.__name__)
        source = await completed(self._jobs, functools.partial(blocking, *args, **kwargs))
        found, error = list[Result](), None
        while True:
            found, error = await completed(self._jobs, functools.partial(_some_of, source))
            for each in found:
                yield each
            if error is not None:
                raise error
            if len(found) < _FETCHED:
                return

    return call


def _some_of(source: Iterator[Result]) -> tuple[list[Result], Exception | None]:
    """Return the next items, and the error that ended them: what came before it is not lost."""
    found: list[Result] = []
    try:
        found.extend(itertools.islice(source, _FETCHED))
    except Exception as error:
        return found, error
    return found, None


class Entered(Generic[Result]):
    """What a coroutine returns: to be awaited, or entered with `async with`."""

    def __init__(self, making: Coroutine[Any, Any, Result]) -> None:
        self._making = making
        self._made: Any = None

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._making.__await__()

    async def __aenter__(self) -> Result:
        self._made = await self._making
        entered: Result = await self._made.__aenter__()
        return entered

    async def __aexit__(self, *error: object) -> None:
        await self._made.__aexit__(*error)
