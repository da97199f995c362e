"""Durability: the only module that syncs the log, notifies the waiters, and stops the store when a sync fails.

When a sync fails, nothing is known of its bytes: the system marks the pages clean, so a second sync would succeed
although the bytes are not on disk. So nothing is retried, the flushed offset does not move, and every waiter, later
flush and later append gets the same error. The next open rewrites the bytes in doubt.

The kernel's gate syncs (`SyncGate`, `_kernel/gate.h`): it gathers the appended bytes, syncs, checks that the segment
still has its name, writes the progress file, and notifies the waiters. It has a thread, unless the store was given
workers of its own: then a worker runs the gate's rounds. If the writer's channels provide their descriptors, no round
uses the interpreter; otherwise the gate calls the channel's `flush`. This module adds the segments to the gate, and
does what needs Python: futures, sealed segments, errors.

Invariants: `flushed_offset <= committed_offset`; neither decreases, except when the writer lost bytes (`lost`). A
waiter is notified once, and a second time only if an interrupt came during the first.
"""

import errno
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable

from penstock import _kernel
from penstock._kernel import GatherBuffer, SyncGate
from penstock.durability.progress import Progress
from penstock.errors import DiskFullError, PenstockError, StoreFailedError, SystemLimitError
from penstock.escape import get_logger
from penstock.log.commit_log import FAILED, LIMITS, CommitLog
from penstock.log.segment import Segment
from penstock.runtime.workers import is_interrupt

logger = get_logger(__name__)

# The limit of one wait for the end of a sync; `join` waits again.
PATIENCE_MS = 60_000


# Below no log offset.
_NOWHERE = (1 << 63) - 1


def _ignore(*_: object) -> None:
    """Be the callback of a flusher that nobody listens to."""


class SyncThread:
    """The thread of the compiled kernel's gate, in the form that a `WorkerGroup` watches (`workers.Watched`)."""

    name = "penstock-sync"

    def __init__(self, gate: SyncGate, limit_s: float) -> None:
        self._gate = gate
        self._limit_ms = int(limit_s * 1000)
        # When the sync began for which `stop` waited in vain; 0 if there is none.
        self._overdue_ns = 0

    @property
    def since(self) -> float:
        """When the current sync began, in seconds; 0 if none is running."""
        return self._gate.since_ns / 1e9

    @property
    def is_alive(self) -> bool:
        """Whether the sync for which `stop` waited in vain is still running.

        A later sync does not count: other threads may put until the log is closed, which ends the sync thread.
        """
        return self._overdue_ns != 0 and not self._gate.await_sync(self._overdue_ns)

    def place(self) -> str:
        """Return what the thread is doing."""
        return "a sync of the log"

    def request_stop(self) -> None:
        """Do nothing: the thread is needed until the log is closed."""

    def stop(self) -> None:
        """Wait for the current sync, up to the time limit."""
        began_ns = self._gate.since_ns
        self._overdue_ns = 0 if self._gate.await_sync(began_ns, self._limit_ms) else began_ns

    def join(self) -> None:
        """Wait for the sync for which `stop` waited in vain, without a time limit."""
        while not self._gate.await_sync(self._overdue_ns, PATIENCE_MS):
            pass


class LogFlusher:
    """Commits and syncs the log for writers and flush policies (`contracts.Flusher`, `Committer`).

    Safe from any thread.

    Attributes:
        gate: syncs the log, from `start` on.
        shown: returns up to where readers may see a log of which they might see everything before a log offset.
    """

    def __init__(
        self,
        log: CommitLog,
        progress: Progress,
        flushed_offset: int,
        flushed_time_ms: int = 0,
        *,
        waits: bool = False,
        on_failed: Callable[[str], None] = _ignore,
    ) -> None:
        """Create the gate, which does not sync yet.

        Args:
            log: the log.
            progress: the progress file, in which each sync and a failure are recorded.
            flushed_offset: up to where the log is durable.
            flushed_time_ms: the store time of a record that is durable.
            waits: puts wait until they are durable; see `FlushPolicy`.
            on_failed: called with the reason when the store fails.
        """
        self._log = log
        self._progress = progress
        self._waits = waits
        self._on_failed = on_failed
        self.shown: Callable[[int], int] | None = None
        # Called after the waiters were notified; no lock is held then.
        self._on_durable: Callable[[], None] = _ignore
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        # The first one counts.
        self._failures: list[StoreFailedError] = []
        self._is_closed = False
        # The end of the last segment that `take_in` has processed.
        self._seen_to = -1
        # The flushed offset at the last `collect_results`.
        self._collected_to = flushed_offset
        self._sealing = threading.Lock()
        self.gate = SyncGate(log.appender, FAILED, flushed_offset, flushed_time_ms)

    def start(self, on_durable: Callable[[], None], wake: Callable[[], object] | None) -> None:
        """Begin to sync.

        Args:
            on_durable: called after a sync that a caller waited for.
            wake: requests that another thread calls `gate.run`; None to start a thread.
        """
        self._on_durable = on_durable
        try:
            self._progress.share(self.gate, wake)
        except OSError as error:
            if error.errno in (*LIMITS, errno.EAGAIN):
                raise SystemLimitError(
                    f"the log's sync thread cannot be started ({error})"
                ) from error
            raise
        self._log.start(self)

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""
        return self.gate.flushed_offset

    @property
    def flushed_time_ms(self) -> int:
        """Store time of the newest durable record, or of an earlier record."""
        return self.gate.flushed_time_ms

    @property
    def failure(self) -> StoreFailedError | None:
        """The failure for which the store takes no more messages; None if there is none."""
        if not self._noted and self._log.appender.refusals & FAILED:
            # The thread of the append or sync that failed has not noted it yet.
            return StoreFailedError("an append or a sync failed", self.flushed_offset)
        return self._noted

    @property
    def _noted(self) -> StoreFailedError | None:
        if not self._failures and self.gate.failure is not None:
            self._learn(*self.gate.failure)
        return self._failures[0] if self._failures else None

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was appended."""
        return self._log.end_offset

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was passed to the system."""
        return self._log.log.committed_offset

    @property
    def visible_offset(self) -> int:
        """Up to where readers may see the log: what is committed, or, where puts wait, what is durable."""
        found = self.gate.flushed_offset if self._waits else self._log.log.committed_offset
        return found if self.shown is None else self.shown(found)

    def flush(self, timeout_ms: int = -1) -> int:
        """Make everything durable that was appended before the call; see `contracts.Flusher`.

        With a time limit, in a store with threads, it may return before: look at what it returns.
        """
        outcome = _kernel.LATE
        try:
            outcome = self._wait_for_all(timeout_ms, runs=True)
        finally:
            self.collect_results()
        self.check()
        if outcome == _kernel.LATE and timeout_ms >= 0:
            return self.flushed_offset
        if outcome != _kernel.FLUSHED:
            raise self._closed()
        if not self._waits:
            # Where puts wait, channels do not prepare their memory differently after a sync.
            for segment in self._log.log.segments[-2:]:
                channel = segment.channel
                if channel is not None and segment.descriptor is not None:
                    channel.synced()
            self._log.appender.pause()
        self._on_durable()
        return self.flushed_offset

    def _wait_for_all(self, timeout_ms: int, *, runs: bool = False) -> int:
        # Read before the end offset: the time of a record below it. No record below it is later than `last_time_ms`.
        newest_ms = self._log.newest_time_ms
        return self.gate.wait(
            self.wrote_offset, newest_ms, self._log.last_time_ms, timeout_ms, runs=runs
        )

    # --- segments

    def take_in(self) -> None:
        """Add the log's new segments to the gate; called under the append lock."""
        segments = self._log.log.segments
        if not segments or segments[-1].end_offset <= self._seen_to:
            return
        newest_first = itertools.takewhile(
            lambda s: s.base_offset >= self._seen_to, reversed(segments)
        )
        for segment in reversed(list(newest_first)):
            if segment.channel is not None:
                # Recorded one by one: an interrupt in between must not skip a segment.
                self._add(segment)
                self._seen_to = segment.end_offset
        self._seen_to = segments[-1].end_offset
        # Waiters are not notified here: what they call may append.
        self._seal_full()

    def _add(self, segment: Segment) -> None:
        base, capacity, descriptor = segment.base_offset, segment.capacity, segment.descriptor
        # The memory of other channels is the appender's: to read the attribute again may replace it.
        buffer = segment.buffer if segment.holds_back else None
        gathered = buffer if isinstance(buffer, GatherBuffer) else None
        try:
            if descriptor is None:
                self.gate.add_by(base, capacity, functools.partial(self._sync, segment))
            else:
                self.gate.add(
                    base, capacity, descriptor, bytes(segment.path), bytes(self._log.log.folder),
                    gathered, segment.extent, segment.channel,
                )  # fmt: skip
        except OSError as error:
            if is_interrupt(error):
                raise
            self.fail(f"{segment.path.name} cannot be synced ({error})")

    def _sync(self, segment: Segment, log_offset: int) -> None:
        """Make a segment durable up to a log offset through its channel; the gate calls it."""
        self._log.log.commit()
        self._log.log.sync_channel(segment, log_offset)
        # A channel may prepare its memory differently after a sync.
        self._log.appender.pause()

    def collect_results(self) -> None:
        """After syncs: seal full segments, take over a failure, notify the waiters in Python."""
        self._seal_full()
        if self.failure is not None or self._waiting:
            self._tell()

    def _seal_full(self) -> None:
        is_mine = False
        try:
            is_mine = self._sealing.acquire(blocking=False)
            flushed = self.flushed_offset
            if is_mine and flushed != self._collected_to:
                self._log.log.flushed_to(flushed)
                self.gate.forget()
                self._collected_to = flushed
        finally:
            if is_mine:
                self._sealing.release()

    def close(self) -> None:
        """End the syncs, and notify the remaining waiters of that."""
        self._is_closed = True
        self.gate.close(PATIENCE_MS)
        self._tell()

    # --- failure, waiters

    def _learn(self, kind: int, error: BaseException) -> None:
        """Take over a failure of the gate."""
        text = str(error) if isinstance(error, OSError) else repr(error)
        gone = OSError(errno.ENOENT, "the segment was removed")
        reasons = {
            _kernel.WRITE: f"gathered records could not be written ({text})",
            _kernel.SYNC: f"a sync of the log failed ({text})",
            _kernel.GONE: f"a sync of the log failed ({gone})",
            _kernel.MARK: f"the log is synced, but the progress file could not be written ({text})",
        }
        # Any other failure was reported to the gate by this process, and is known already.
        if kind in reasons:
            self._fail(reasons[kind], _NOWHERE, error)

    def lost(self, log_offset: int) -> StoreFailedError:
        """Stop the store because the log lacks the bytes appended at `log_offset`; return the error."""
        reason = f"the record appended at log offset {log_offset} cannot be read back: the segment writer lost it"
        return self._fail(reason, log_offset)

    def commit(self) -> int:
        """Pass all written bytes to the system; see `contracts.Committer`."""
        self.check()
        try:
            return self._log.log.commit()
        except Exception as error:
            if is_interrupt(error):
                raise
            text = str(error) if isinstance(error, OSError) else repr(error)
            writer = self._log.tail.writer.name
            reason = f"written bytes could not be passed to the system by segment writer {writer!r} ({text})"
            raise self.fail(reason) from error

    def check(self) -> None:
        """Raise if the store has failed."""
        if self.failure is not None:
            raise self.failure

    def failed_append(self, error: OSError) -> PenstockError:
        """Return the error for an append that failed: disk full, or a failure that stops all writing.

        Raises the error itself if a signal handler raised it: the append is complete, or nothing of it is there.
        """
        if is_interrupt(error):
            raise error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(self._log.log.folder, 0)
        return self.fail(f"an append failed ({error})")

    def fail(self, reason: str) -> StoreFailedError:
        """Stop the store for writing: note the failure and notify every waiter; return the error."""
        return self._noted or self._fail(reason, _NOWHERE)

    def _fail(
        self, reason: str, log_offset: int, cause: BaseException | None = None
    ) -> StoreFailedError:
        """Note a failure: from now on nothing is appended or synced. The first is logged and reported."""
        failure = StoreFailedError(reason, min(self.flushed_offset, log_offset))
        failure.__cause__ = cause
        self._failures.append(failure)
        self._log.appender.refuse(FAILED)
        try:
            self.gate.fail(log_offset)
            self._progress.record_failure(failure.durable_offset)
        except OSError:
            logger.exception("the failure could not be recorded in the progress file")
        if self._failures[0] is failure:
            logger.error("%s", failure)
            self._on_failed(reason)
        self._tell()
        return self._failures[0]

    def add_waiter(self, end_offset: int, notify: Callable[[], None]) -> None:
        """Call `notify` once every byte below `end_offset` is durable, or the store has failed: see `outcome`."""
        self._waiting.append((end_offset, notify))
        # The flush that covers it may have ended, or the store failed, just before.
        if self._has_ended or self.flushed_offset >= end_offset:
            self._tell()

    def outcome(self, end_offset: int) -> StoreFailedError | None:
        """Return why a notified waiter's bytes are not durable; None if they are."""
        if self.flushed_offset >= end_offset:
            return None
        return self.failure or (self._closed() if self._is_closed else None)

    def _closed(self) -> StoreFailedError:
        return StoreFailedError(
            "the store was closed before the log was synced", self.flushed_offset
        )

    def wait(self, end_offset: int, timeout_ms: int) -> bool:
        """Wait until everything below `end_offset` is durable; return False after `timeout_ms`.

        Raises the store's failure.
        """
        if self.flushed_offset >= end_offset:
            return True
        # This also waits for records that others have appended since.
        outcome = self._wait_for_all(timeout_ms)
        self._on_durable()
        if outcome == _kernel.LATE and self.flushed_offset < end_offset:
            return False
        failure = self.outcome(end_offset)
        if failure is not None:
            raise failure
        return True

    def _tell(self) -> None:
        """Notify all waiters whose bytes are durable or in doubt. Threads may do it at once: one takes a waiter."""
        flushed, has_ended = -1, False
        # Repeated if more became durable meanwhile: the thread that synced it did not see a waiter that this one held.
        while (flushed, has_ended) != (self.flushed_offset, self._has_ended):
            flushed, has_ended = self.flushed_offset, self._has_ended
            for waiter in self._waiting.copy():
                if waiter[0] <= flushed or has_ended:
                    self._notify(waiter)

    @property
    def _has_ended(self) -> bool:
        """Whether nothing more is synced."""
        return self._is_closed or self._noted is not None

    def _notify(self, waiter: tuple[int, Callable[[], None]]) -> None:
        try:
            try:
                self._waiting.remove(waiter)
            except ValueError:
                # Another thread has notified it.
                return
            waiter[1]()
        except BaseException:
            # An interrupt: a second notification is harmless, a missing one is not.
            if waiter not in self._waiting:
                self._waiting.appendleft(waiter)
            raise
