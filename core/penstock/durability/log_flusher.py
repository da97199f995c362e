"""Durability: the only module that syncs the log, notifies the waiters, and stops the store when a sync fails.

When a sync fails, nothing is known of its bytes: the system marks the pages clean, so a second sync would succeed
although the bytes are not on disk. So nothing is retried, the flushed offset does not move, and every waiter, later flush
and later append gets the same error. The next open rewrites the bytes in doubt.

If the writer's channels provide their descriptors, the kernel's thread syncs (`SyncGate`): it gathers the appended
bytes, syncs, checks that the segment still has its name, writes the progress file, and notifies the waiters, all without the interpreter. This module then does only what needs Python: futures, sealed
segments, errors. With a channel or files of another kind, this module does all of it, one sync at a time.

Invariants: `flushed_offset <= committed_offset`; neither decreases, except when the writer lost bytes (`lost`). A
waiter is notified once, and a second time only if an interrupt came during the first.
"""

import contextlib
import errno
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence

from penstock import _kernel
from penstock._kernel import SyncGate
from penstock.durability.progress import Progress
from penstock.errors import StoreFailedError
from penstock.escape import get_logger
from penstock.log.commit_log import FAILED, CommitLog
from penstock.log.segment import Segment
from penstock.runtime.workers import WorkerGroup

# The limit of one wait for the end of a sync; `join` waits again.
PATIENCE_MS = 60_000


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

    def tell(self) -> None:
        """Do nothing: the thread is needed until the log is closed."""

    def stop(self) -> None:
        """Wait for the current sync, up to the time limit."""
        began_ns = self._gate.since_ns
        self._overdue_ns = 0 if self._gate.await_sync(began_ns, self._limit_ms) else began_ns

    def join(self) -> None:
        """Wait for the sync for which `stop` waited in vain, without a time limit."""
        while not self._gate.await_sync(self._overdue_ns, PATIENCE_MS):
            pass


logger = get_logger(__name__)

# Below no log offset.
_NOWHERE = (1 << 63) - 1


class LogFlusher:
    """Commits and syncs the log for writers and flush policies (`contracts.Flusher`, `Committer`).

    Safe from any thread.
    """

    def __init__(self, log: CommitLog, flushed_offset: int, flushed_time_ms: int = 0) -> None:
        self._log = log
        self._flushed = flushed_offset
        self._flushed_ms = flushed_time_ms
        # Set by the engine before the first append.
        self.on_flushed: Callable[[int], None] = _ignore
        self.on_failed: Callable[[StoreFailedError], None] = _ignore
        self.on_gate: Callable[[SyncGate], None] = _ignore
        # Whether waiting puts are synced without a call of `request`; see `FlushPolicy`.
        self.group_commit = False
        # Called after the waiters were notified; no lock is held then.
        self.on_durable: Callable[[], None] = lambda: None
        self._flushing = threading.Lock()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        # The first one counts.
        self._failures: list[StoreFailedError] = []
        self._count = 0
        self._is_closed = False
        self._progress: Progress | None = None
        self._crew: WorkerGroup | None = None
        self._gate: SyncGate | None = None
        # The end of the last segment that `take_in` has processed.
        self._seen_to = -1
        self._sealing = threading.Lock()

    def start(self, progress: Progress, crew: WorkerGroup) -> None:
        """Let the kernel's thread sync, from the first segment whose channel provides its descriptor."""
        self._progress, self._crew = progress, crew
        with self._log.lock:
            self._log.on_segment = self.take_in
            self.take_in()

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""
        return self._flushed if self._gate is None else self._gate.flushed_offset

    @property
    def flushed_time_ms(self) -> int:
        """Store time of the newest durable record, or of an earlier record."""
        return self._flushed_ms if self._gate is None else self._gate.flushed_time_ms

    @property
    def count(self) -> int:
        """The number of syncs that succeeded."""
        return self._count if self._gate is None else self._count + self._gate.count

    @property
    def failure(self) -> StoreFailedError | None:
        """The failure for which the store takes no more messages; None if there is none."""
        if not self._noted and self._log.appender.refusals & FAILED:
            # The thread of the append or sync that failed has not noted it yet.
            return StoreFailedError("an append or a sync failed", self.flushed_offset)
        return self._noted

    @property
    def _noted(self) -> StoreFailedError | None:
        if not self._failures and self._gate is not None and self._gate.failure is not None:
            self._learn(*self._gate.failure)
        return self._failures[0] if self._failures else None

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was appended."""
        return self._log.end_offset

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was passed to the system."""
        return self._log.log.committed_offset

    def flush(self) -> int:
        """Make everything durable that was appended before the call; see `contracts.Flusher`."""
        if self._gate is not None:
            return self._flush_at(self._gate)
        failed: _SyncError | None = None
        if self._failures:
            # The thread that noted the failure may have been interrupted before it notified all waiters.
            self._tell()
        with self._flushing:
            self.check()
            gate = self._opened_gate()
            try:
                if gate is None:
                    self._sync()
            except _SyncError as error:
                # Noted under the lock, so that no later sync succeeds after the failed one.
                failed = error
                self._note_failure(failed.failure)
        if gate is not None:
            # It took over while this thread waited for the lock.
            return self._flush_at(gate)
        if failed is not None:
            # No lock is held: a notified caller may do anything, for example close the store.
            self._announce(failed.failure)
            raise self._failures[0] from failed.__cause__
        self._tell()
        self.on_durable()
        return self._flushed

    def _opened_gate(self) -> SyncGate | None:
        """Return the gate, which another thread may have opened since this thread looked."""
        return self._gate

    def _sync(self) -> None:
        """Sync everything appended, and record it; raises `_SyncError`."""
        time_ms = self._log.newest_time_ms
        try:
            self._log.log.commit()
            reached = self._log.log.flush(self._flushed)
            # A channel may prepare its memory differently after a sync.
            self._log.appender.pause()
        except OSError as error:
            raise self._not_synced(f"a sync of the log failed ({error})") from error
        # Another thread may have noted a loss meanwhile, which must not be recorded as durable.
        self.check()
        if reached <= self._flushed:
            return
        self._count += 1
        self._flushed, self._flushed_ms = reached, time_ms
        try:
            self.on_flushed(reached)
        except OSError as error:
            raise self._not_synced(
                f"the log is synced, but the progress file could not be written ({error})"
            ) from error

    def _not_synced(self, reason: str) -> "_SyncError":
        return _SyncError(StoreFailedError(reason, self._flushed))

    # --- syncs by the kernel's thread

    def take_in(self) -> None:
        """Add the log's new segments to the gate; called under the append lock."""
        segments = self._log.log.segments
        if not segments or segments[-1].end_offset <= self._seen_to:
            return
        fresh = self._fresh(segments)
        if self._seen_to < 0 and fresh and fresh[0].descriptor is not None:
            self._open_gate()
            # A sync of this module, which has ended now, may have sealed some of them.
            fresh = self._fresh(segments)
        gate = self._gate
        for segment in fresh if gate is not None else ():
            # Recorded one by one: an interrupt in between must not skip a segment.
            self._add(gate, segment)
            self._seen_to = segment.end_offset
        self._seen_to = segments[-1].end_offset
        if gate is not None:
            self.settle()

    def _fresh(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that were not taken in yet and are not sealed."""
        return [s for s in segments if s.base_offset >= self._seen_to and s.channel is not None]

    def _open_gate(self) -> None:
        """Start the kernel's thread; if that fails, this module syncs."""
        progress, crew = self._progress, self._crew
        if progress is None or crew is None:
            return
        # No sync of this module may run while the gate takes over.
        with self._flushing:
            try:
                mark = progress.descriptor
                if mark is None:
                    return
                gate = SyncGate(
                    self._log.appender, FAILED, self._flushed, self._flushed_ms, progress.sequence, mark
                )  # fmt: skip
                progress.share(gate)
            except OSError as error:
                logger.warning(
                    "the sync thread could not be started (%s); puts sync one by one, which is slower", error
                )  # fmt: skip
                return
            self._gate = gate
        crew.adopt(SyncThread(gate, crew.limit_s))
        self.on_gate(gate)

    def _add(self, gate: SyncGate | None, segment: Segment) -> None:
        log, channel, descriptor = self._log.log, segment.channel, segment.descriptor
        assert gate is not None
        if channel is None or descriptor is None:
            self.fail(
                f"the writer plugin provides no descriptor for {segment.path.name}, but did for earlier segments"
            )
            return
        try:
            gate.add(
                segment.base_offset, segment.capacity, descriptor, bytes(segment.path),
                bytes(log.folder), segment.gathered, segment.extent, channel,
            )  # fmt: skip
        except OSError as error:
            self.fail(f"{segment.path.name} cannot be synced ({error})")

    def _flush_at(self, gate: SyncGate) -> int:
        self.check()
        outcome = _kernel.LATE
        try:
            outcome = self._wait_at(gate, -1)
        finally:
            self.settle()
        self.check()
        if outcome != _kernel.FLUSHED:
            raise self._closed()
        if not self.group_commit:
            # With group commit, channels do not prepare their memory differently after a sync.
            for segment in self._log.log.segments[-2:]:
                if segment.channel is not None:
                    segment.channel.synced()
            self._log.appender.pause()
        self.on_durable()
        return gate.flushed_offset

    def _wait_at(self, gate: SyncGate, timeout_ms: int) -> int:
        # Read before the end offset: the time of a record below it. No record below it is later than `last_time_ms`.
        newest_ms = self._log.newest_time_ms
        return gate.wait(self.wrote_offset, newest_ms, self._log.last_time_ms, timeout_ms)

    def settle(self) -> None:
        """After syncs of the kernel's thread: seal full segments, take over a failure, notify the waiters in Python."""
        gate = self._gate
        if gate is None:
            return
        is_mine = False
        try:
            is_mine = self._sealing.acquire(blocking=False)
            if is_mine:
                self._log.log.flushed_to(gate.flushed_offset)
                gate.forget()
        finally:
            if is_mine:
                self._sealing.release()
        if self.failure is not None or self._waiting:
            self._tell()

    def _learn(self, kind: int, error: str) -> None:
        """Take over a failure of the kernel's thread."""
        gone = OSError(errno.ENOENT, "the segment was removed")
        reasons = {
            _kernel.WRITE: f"gathered records could not be written ({error})",
            _kernel.SYNC: f"a sync of the log failed ({error})",
            _kernel.GONE: f"a sync of the log failed ({gone})",
            _kernel.MARK: f"the log is synced, but the progress file could not be written ({error})",
        }
        # Any other failure was reported to the gate by this process, and is known already.
        if kind in reasons:
            self._fail(reasons[kind], _NOWHERE)

    def close(self) -> None:
        """End the kernel's thread; nothing is synced afterwards, and the remaining waiters are notified of that."""
        self._is_closed = True
        if self._gate is not None:
            self._gate.close(PATIENCE_MS)
        self._tell()

    # --- failure, waiters

    def lost(self, log_offset: int) -> StoreFailedError:
        """Stop the store because the log lacks the bytes appended at `log_offset`; return the error."""
        self._flushed = min(self._flushed, log_offset)
        reason = f"the record appended at log offset {log_offset} cannot be read back: the segment writer lost it"
        return self._fail(reason, log_offset)

    def commit(self) -> int:
        """Pass all written bytes to the system; see `contracts.Committer`."""
        self.check()
        try:
            return self._log.log.commit()
        except OSError as error:
            raise self.fail(f"written bytes could not be passed to the system ({error})") from error

    def check(self) -> None:
        """Raise if the store has failed."""
        if self.failure is not None:
            raise self.failure

    def fail(self, reason: str) -> StoreFailedError:
        """Stop the store for writing: note the failure and notify every waiter; return the error."""
        return self._noted or self._fail(reason, _NOWHERE)

    def _fail(self, reason: str, log_offset: int) -> StoreFailedError:
        failure = StoreFailedError(reason, min(self.flushed_offset, log_offset))
        self._note_failure(failure, log_offset)
        self._announce(failure)
        return self._failures[0]

    def _note_failure(self, failure: StoreFailedError, log_offset: int = _NOWHERE) -> None:
        """Note a failure: from now on nothing is appended or synced."""
        self._failures.append(failure)
        self._log.appender.refuse(FAILED)
        if self._gate is not None:
            self._gate.fail(log_offset)

    def _announce(self, failure: StoreFailedError) -> None:
        """Log a noted failure and report it to the engine, if it is the first; notify all waiters."""
        if self._failures[0] is failure:
            logger.error("%s", failure)
            self.on_failed(failure)
        self._tell()

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

    def wait(self, end_offset: int, timeout_ms: int, request: Callable[[], None]) -> bool:
        """Wait until everything below `end_offset` is durable; return False after `timeout_ms`.

        Raises the store's failure. Each waiter has a lock of its own: waking many by one condition is multiple
        times slower.
        """
        if self.flushed_offset >= end_offset:
            return True
        if self._gate is not None and self.group_commit:
            # This also waits for records that others have appended since.
            outcome = self._wait_at(self._gate, timeout_ms)
            is_notified = outcome != _kernel.LATE or self.flushed_offset >= end_offset
            self.on_durable()
        else:
            notified = threading.Lock()
            notified.acquire()
            self.add_waiter(end_offset, functools.partial(_release, notified))
            request()
            is_notified = notified.acquire(timeout=timeout_ms / 1000)
        if not is_notified:
            return False
        failure = self.outcome(end_offset)
        if failure is not None:
            raise failure
        return True

    def _tell(self) -> None:
        """Notify all waiters whose bytes are durable or in doubt. May run in multiple threads: each waiter is taken by one."""
        flushed, has_ended = -1, False
        # Repeated if more became durable meanwhile: the thread that synced it did not see a waiter that this one held.
        while (flushed, has_ended) != (self.flushed_offset, self._has_ended):
            flushed, has_ended = self.flushed_offset, self._has_ended
            self._tell_once(flushed, has_ended)

    @property
    def _has_ended(self) -> bool:
        """Whether nothing more is synced."""
        return self._is_closed or self._noted is not None

    def _tell_once(self, flushed: int, has_ended: bool) -> None:
        waiting = self._waiting
        for waiter in waiting.copy():
            end_offset, notify = waiter
            if end_offset > flushed and not has_ended:
                continue
            try:
                try:
                    waiting.remove(waiter)
                except ValueError:
                    # Another thread has notified it.
                    continue
                notify()
            except BaseException:
                # An interrupt: a second notification is harmless, a missing one is not.
                if waiter not in waiting:
                    waiting.appendleft(waiter)
                raise


class _SyncError(Exception):
    """A sync of this module that failed, with the store's failure."""

    def __init__(self, failure: StoreFailedError) -> None:
        super().__init__(failure)
        self.failure = failure


def _release(lock: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):
        lock.release()


def _ignore(_fact: object) -> None:
    """Do nothing: no callback is set yet."""
