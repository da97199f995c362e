"""A prepared message for asyncio: wraps the one that `Store.prepare` returns."""

from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import Any, Self

from penstock.aio.calls import completed
from penstock.contracts import Prepared
from penstock.message import Receipt


class AsyncPrepared:
    """A prepared message, for the tasks of one event loop; see `contracts.Prepared`.

    As a context manager, it is finished at the end of the block as `contracts.Prepared` says, also if the task is cancelled.

    Attributes:
        prepared: the prepared message whose methods block.
    """

    def __init__(self, prepared: Prepared, jobs: Executor) -> None:
        self.prepared = prepared
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the prepared message, such as `transaction_id`."""
        if name.startswith("_") or name == "prepared":
            raise AttributeError(name)
        return getattr(self.prepared, name)

    async def commit(self, *, wait: bool = True) -> Receipt:
        """Put the message into its topic; see `contracts.Prepared.commit`. It is committed even if the task is cancelled."""
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
