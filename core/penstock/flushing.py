"""Durability: the one place that syncs the log, tells the waiters, and stops the store when a sync fails.

When a sync fails, nothing is known of the bytes it was for: the system marks the pages clean, so a
second sync would succeed and lie. So nothing is retried, the flushed offset does not move, every
waiter gets the one error, and each later flush and append gets it too. The next open rewrites what
was in doubt.

Invariants: `flushed_offset <= committed_offset`; neither decreases, except where the writer lost bytes (`lost`). A waiter is told exactly once.
"""

import threading
from collections import deque
from collections.abc import Callable

from penstock.commitlog import CommitLog
from penstock.errors import StoreFailedError
from penstock.escape import get_logger
from penstock.readback import first_unreadable

logger = get_logger(__name__)


class LogFlusher:
    """Commits and syncs the log for writers and flush policies (`contracts.Flusher`, `Committer`).

    Safe from any thread.
    """

    def __init__(self, log: CommitLog, flushed_offset: int, flushed_time_ms: int = 0) -> None:
        self._log = log
        self._flushed = flushed_offset
        self.flushed_time_ms = flushed_time_ms
        # Set by the engine before the first append.
        self.on_flushed: Callable[[int], None] = _ignore
        self.on_failed: Callable[[StoreFailedError], None] = _ignore
        # After the waiters were told; nothing is held then.
        self.on_durable: Callable[[], None] = lambda: None
        self._flushing = threading.Lock()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.failure: StoreFailedError | None = None
        self.count = 0

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""
        return self._flushed

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was appended."""
        return self._log.end_offset

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was handed to the system."""
        return self._log.log.committed_offset

    def flush(self) -> int:
        """Make durable all that was appended before the call; see `contracts.Flusher`."""
        with self._flushing:
            self.check()
            time_ms = self._log.newest_time_ms
            try:
                self._log.log.commit()
                reached = self._log.log.flush(self._flushed)
            except OSError as error:
                raise self.fail(f"a sync of the log failed ({error})") from error
            if reached > self._flushed:
                self._read_back(reached)
                self.count += 1
                self._flushed = reached
                self.flushed_time_ms = time_ms
                self._note(reached)
        self._tell()
        self.on_durable()
        return reached

    def _read_back(self, reached: int) -> None:
        """Raise, where somebody waits to hear "on disk", if the log has not got what was synced."""
        if not self._waiting or self._log.has_copies:
            return
        try:
            lost = first_unreadable(self._log.log, self._flushed, reached)
        except OSError as error:
            raise self.fail(f"what was synced cannot be read back ({error})") from error
        if lost is not None:
            raise self.lost(lost)

    def lost(self, log_offset: int) -> StoreFailedError:
        """Stop the store: the log has not got what was appended at `log_offset`; returns the error.

        The one case in which the flushed offset goes back: what was synced there was not what was appended.
        """
        self._flushed = min(self._flushed, log_offset)
        return self.fail(
            f"what was appended at log offset {log_offset} cannot be read back, so the writer lost it"
        )

    def _note(self, reached: int) -> None:
        try:
            self.on_flushed(reached)
        except OSError as error:
            raise self.fail(f"the log is synced, but no mark could be written ({error})") from error

    def commit(self) -> int:
        """Hand all that was written to the system; see `contracts.Committer`."""
        self.check()
        try:
            return self._log.log.commit()
        except OSError as error:
            raise self.fail(f"the system took no more bytes ({error})") from error

    def check(self) -> None:
        """Raise if the store has failed."""
        if self.failure is not None:
            raise self.failure

    def fail(self, reason: str) -> StoreFailedError:
        """Stop the store for writing: note the failure and tell every waiter; returns the error."""
        if self.failure is None:
            self.failure = StoreFailedError(reason, self._flushed)
            logger.error("%s", self.failure)
            self.on_failed(self.failure)
        self._tell()
        return self.failure

    def add_waiter(self, end_offset: int, told: Callable[[], None]) -> None:
        """Call `told` once every byte below `end_offset` is durable, or the store has failed: see `outcome`."""
        self._waiting.append((end_offset, told))
        # The flush that covers it may have ended, or the store failed, just before.
        if self.failure is not None or self._flushed >= end_offset:
            self._tell()

    def outcome(self, end_offset: int) -> StoreFailedError | None:
        """Return for a waiter that was told why its bytes are not durable; None if they are."""
        return None if self._flushed >= end_offset else self.failure

    def wait(self, end_offset: int, timeout_ms: int, request: Callable[[], None]) -> bool:
        """Wait until durable; False when it took too long. Raises when the store has failed.

        Each waiter has a lock of its own: waking many by one condition is several times slower.
        """
        if self._flushed >= end_offset:
            return True
        gate = threading.Lock()
        gate.acquire()
        self.add_waiter(end_offset, gate.release)
        request()
        if not gate.acquire(timeout=timeout_ms / 1000):
            return False
        failure = self.outcome(end_offset)
        if failure is not None:
            raise failure
        return True

    def _tell(self) -> None:
        """Tell all that are done. Runs in several threads at once: each waiter is popped by one."""
        flushed, failure = -1, None
        # Again where more is durable meanwhile: who told of that did not see the waiter that was held here.
        while (flushed, failure) != (self._flushed, self.failure):
            flushed, failure = self._flushed, self.failure
            self._tell_once(flushed, failure is not None)

    def _tell_once(self, flushed: int, has_failed: bool) -> None:
        waiting = self._waiting
        for _ in range(len(waiting)):
            try:
                end_offset, told = waiting.popleft()
            except IndexError:
                return
            if end_offset <= flushed or has_failed:
                told()
            else:
                waiting.append((end_offset, told))


def _ignore(_fact: object) -> None:
    """Nobody listens yet."""
