"""The receipt of a message whose put did not wait, as a future that is done when it is known what became of the message."""

from concurrent.futures import Future, InvalidStateError

from penstock.contracts import CopyOutcome, FlushPolicy
from penstock.durability.log_flusher import LogFlusher
from penstock.message import Durability, Receipt
from penstock.store.copying import Copying, settled


class PendingReceipt:
    """Completes a future with the receipt of one message. Safe from any thread.

    Flush and copies go on at the same time, unless readers, and so copies, may see the message only when it is durable.
    """

    def __init__(
        self,
        receipt: Receipt,
        flusher: LogFlusher,
        policy: FlushPolicy,
        copying: Copying | None,
    ) -> None:
        self.future: Future[Receipt] = Future()
        self.future.set_running_or_notify_cancel()
        self._receipt = receipt
        self._end = receipt.log_offset + receipt.size
        self._flusher = flusher
        self._policy = policy
        self._copying = copying
        self._is_flushed = False
        # Whether the copies are waited for only after the flush; False from then on.
        self._copies_later = copying is not None and policy.appender_waits
        self._outcome: CopyOutcome | None = None

    def begin(self, *, flushes: bool) -> "Future[Receipt]":
        """Return the future; with `flushes` it is done only when the message is durable."""
        if self._copying is not None and not self._copies_later:
            self._copying.request(self._end, self._on_copied)
        if flushes:
            self._flusher.add_waiter(self._end, self._on_flushed)
            self._policy.request()
        else:
            self._on_flushed()
        return self.future

    def _on_flushed(self) -> None:
        """Called when the message is durable, or will not be; a second time if an interrupt came during the first."""
        failure = self._flusher.outcome(self._end)
        if failure is not None:
            self._complete(failure)
            return
        self._is_flushed = True
        if self._copies_later and self._copying is not None:
            self._copies_later = False
            self._copying.request(self._end, self._on_copied)
        else:
            self._complete_if_known()

    def _on_copied(self, outcome: CopyOutcome) -> None:
        self._outcome = outcome
        self._complete_if_known()

    def _complete_if_known(self) -> None:
        if not self._is_flushed or (self._copying is not None and self._outcome is None):
            return
        is_on_disk = self._flusher.flushed_offset >= self._end
        if self._outcome is not None:
            status, durability = settled(self._outcome, is_on_disk=is_on_disk)
            self._complete(self._receipt._replace(status=status, durability=durability))
        elif is_on_disk:
            self._complete(self._receipt._replace(durability=Durability.ON_DISK))
        else:
            self._complete(self._receipt)

    def _complete(self, result: Receipt | Exception) -> None:
        try:
            if isinstance(result, Exception):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)
        except InvalidStateError:
            # Another thread has completed it, or an interrupt came after this one had.
            return
