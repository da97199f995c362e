"""The messages of one `with store.transaction()`: checked when put, and appended as one atomic batch at its end."""

import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from penstock import Message, Receipt
from penstock.contracts import OpenStore, PutOptions
from penstock.contracts.messaging import AnsweredMessages
from penstock.errors import TransactionEndedError

if TYPE_CHECKING:
    from penstock_messaging.consuming.transaction_acks import TransactionAcks
    from penstock_messaging.transactions.deciding import Deciding


class BatchTransaction:
    """Implements `contracts.Transaction`. Safe from any thread."""

    def __init__(self, store: OpenStore, deciding: "Callable[[], Deciding]") -> None:
        """`deciding` returns what decides about acknowledgements; called if there are any."""
        self._store = store
        self._deciding = deciding
        self._acks: TransactionAcks | None = None
        # A signal handler may put while its thread does.
        self._lock = threading.RLock()
        self._batch = store.message_batch()
        self._is_open = False
        self._has_ended = False
        self._receipts: Sequence[Receipt] = ()

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "open" if self._is_open else "not begun"
        return f"<transaction, {state}>"

    @property
    def receipts(self) -> Sequence[Receipt]:
        """See `Transaction.receipts`."""
        return self._receipts

    def put(self, topic: str, body: bytes, **options: Unpack[PutOptions]) -> None:
        """See `Transaction.put`."""
        # Within the block, the batch's own function has taken the place of this one.
        raise TransactionEndedError("put")

    def put_many(self, messages: Iterable[Message]) -> None:
        """See `Transaction.put_many`."""
        with self._lock:
            self._check_open("put_many")
            self._batch.add_many(messages)

    def ack(self, messages: AnsweredMessages) -> None:
        """See `Transaction.ack`."""
        with self._lock:
            self._check_open("ack")
            if self._acks is None:
                # Imported here: most transactions have no part in it.
                from penstock_messaging.consuming.transaction_acks import TransactionAcks  # noqa: PLC0415 - see above

                self._acks = TransactionAcks(self._store)
            self._acks.add(messages)

    def _check_open(self, call: str) -> None:
        if not self._is_open:
            raise TransactionEndedError(call)

    def __enter__(self) -> Self:
        with self._lock:
            if self._is_open or self._has_ended:
                raise TransactionEndedError("with")
            self._is_open = True
            self.put = self._batch.put  # type: ignore[method-assign] # a call between would take as long as the put
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._lock:
                self._end(kind is None)
        finally:
            # An interrupt may have come before `_end`: what nothing holds any more is given back.
            self._is_open, self._has_ended, self._acks = False, True, None
            self.__dict__.pop("put", None)

    def _end(self, is_done: bool) -> None:
        self._is_open, self._has_ended = False, True
        self._batch.end()
        acks, self._acks = self._acks, None
        if not is_done:
            if acks is not None:
                acks.give_back()
        elif acks is not None:
            self._receipts = self._deciding().commit(self._batch, acks)
        elif len(self._batch):
            self._receipts = self._batch.append()
