"""Saves what puts and consumers have changed: a second after the first change, in a thread of its own."""

import threading
from collections.abc import Callable

from penstock.contracts import Context, Stoppable
from penstock.errors import StorageError
from penstock.escape import get_logger

logger = get_logger(__name__)

# At most one write a second; what a killed process had not saved, the next open for writing finds in the queues.
DELAY_MS = 1000
RETRY_MS = 10_000


class Saving:
    """Calls `save` soon after it was requested. Safe from any thread.

    The thread starts at the first request. A failure is logged once and retried: messages need none of it.

    Attributes:
        error: why the last saving failed; empty if it did not.
    """

    def __init__(self, context: Context, save: Callable[[], None]) -> None:
        self._context = context
        self._save = save
        self._due_ms: int | None = None
        self._worker: Stoppable | None = None
        # A signal handler may put, too.
        self._lock = threading.RLock()
        self._has_ended = False
        self.error = ""

    def request(self) -> None:
        """Save in a second, unless that is due already."""
        if self._due_ms is not None or self._has_ended:
            return
        with self._lock:
            self._due_ms = self._context.clock.monotonic_ms() + DELAY_MS
            if self._worker is None:
                self._worker = self._context.spawn("penstock-topics", self._step)
            else:
                self._worker.wake()

    def _step(self) -> float | None:
        if self._due_ms is None or self._has_ended:
            return None
        left_ms = self._due_ms - self._context.clock.monotonic_ms()
        if left_ms > 0:
            return left_ms / 1000
        # Before saving: a change that comes meanwhile may not be among what is saved.
        self._due_ms = None
        if not self.save():
            self._due_ms = self._context.clock.monotonic_ms() + RETRY_MS
            return RETRY_MS / 1000
        return None

    def save(self) -> bool:
        """Save now; returns whether that succeeded."""
        try:
            self._save()
        except (OSError, StorageError) as error:
            if str(error) != self.error:
                self.error = str(error)
                logger.warning("the list of topics or groups could not be saved; messages are not affected, and it is "
                    "retried: %s", error)  # fmt: skip
            return False
        self.error = ""
        return True

    def end(self) -> None:
        """Stop the thread, and save what is left."""
        self._has_ended = True
        if self._worker is not None:
            self._worker.stop()
        self.save()
