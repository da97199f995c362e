"""A transaction for asyncio: wraps the one that `Store.transaction` returns."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from penstock.aio.calls import completed
from penstock.aio.consumer import Answered, plain
from penstock.contracts import PutOptions, Transaction
from penstock.message import Message, Receipt


class AsyncTransaction:
    """Messages that are stored together at the end of an `async with` block, or not at all; see `contracts.Transaction`.

    Attributes:
        transaction: the transaction whose end blocks.
    """

    def __init__(self, transaction: Transaction, jobs: Executor) -> None:
        self.transaction = transaction
        self._jobs = jobs

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
        """Store all messages, or drop them after an exception; what has begun is completed even if the task is cancelled."""
        end = partial(self.transaction.__exit__, kind, error, trace)
        if kind is None:
            await completed(self._jobs, end)
        else:
            end()
