"""The messages of one `with store.transaction()`: checked when they are put, and appended as one atomic batch at its end."""

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

from penstock import Message, Receipt
from penstock.contracts import OpenStore, PutOptions
from penstock.errors import TransactionEndedError


class BatchTransaction:
    """Implements `contracts.Transaction`. Safe from any thread."""

    def __init__(self, store: OpenStore) -> None:
        # A signal handler may put while its thread does.
        self._lock = threading.RLock()
        self._batch = store.message_batch()
        self._is_open = False
        self._has_ended = False
        self._receipts: Sequence[Receipt] = ()

    @property
    def receipts(self) -> Sequence[Receipt]:
        """See `Transaction.receipts`."""
        return self._receipts

    def put(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> None:
        """See `Transaction.put`."""
        message = Message(topic, body, **options)
        with self._lock:
            self._check_open("put")
            self._batch.add(message)

    def put_many(self, messages: Iterable[Message]) -> None:
        """See `Transaction.put_many`."""
        with self._lock:
            self._check_open("put_many")
            self._batch.add_many(messages)

    def _check_open(self, call: str) -> None:
        if not self._is_open:
            raise TransactionEndedError(call)

    def __enter__(self) -> Self:
        with self._lock:
            if self._is_open or self._has_ended:
                raise TransactionEndedError("with")
            self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_open, self._has_ended = False, True
            if kind is None:
                self._receipts = self._batch.append()
