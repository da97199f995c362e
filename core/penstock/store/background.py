"""The background work of a store that is open for writing: following the log, checkpoints, retention.

Each task has a `step` for a worker of its own: the worker runs it at once, and again after as many seconds as it returns.
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Sequence

from penstock.contracts import Dispatcher, FlushPolicy, Stoppable
from penstock.dispatch.tail_follower import TailFollower
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.progress import Checkpoint, Progress, Times
from penstock.errors import StorageError, StoreFailedError, SystemLimitError
from penstock.escape import get_logger
from penstock.log.commit_log import LIMITS, CommitLog
from penstock.log.segment import Segment
from penstock.retention.runner import Retention
from penstock.runtime.clock import Clock
from penstock.runtime.waking import Wakes

logger = get_logger(__name__)

# How long the tail follower pauses if records may not be dispatched yet, or no file descriptor is free.
_WAITING_S, _LIMIT_PAUSE_S = 0.02, 0.5
# If readers wait, the tail follower pauses this multiple of its round's CPU time: it uses at most a third of a core.
_PAUSE_SHARE = 2


class FollowerTask:
    """Dispatches what readers may see, publishes how far it is, and reports sealed segments. Safe from any thread.

    Attributes:
        worker: the worker that runs `step`; None until the store has started.
    """

    def __init__(
        self,
        log: CommitLog,
        flusher: LogFlusher,
        follower: TailFollower,
        policy: FlushPolicy,
        progress: Progress,
        wakes: Wakes,
        clock: Clock,
        interval_ms: int,
        on_sealed: Callable[[Segment], None],
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._follower = follower
        self._waits = policy.appender_waits
        self._progress = progress
        self._wakes = wakes
        self._clock = clock
        self._pause_s = interval_ms / 1000
        self._on_sealed = on_sealed
        # The log offset up to which waiting readers were woken: waking them again for nothing new costs each of them a round.
        self._woken_to = -1
        self.worker: Stoppable | None = None

    def visible_offset(self) -> int:
        """Return the log offset up to which readers may see records."""
        return self._flusher.flushed_offset if self._waits else self._log.log.committed_offset

    def wake(self) -> None:
        """Make the worker run a round now."""
        self._log.appender.is_idle = False
        if self.worker is not None:
            self.worker.wake()

    def wake_if_durable(self) -> None:
        """Called after a sync: under a policy that waits, only now may readers see the records."""
        if self._waits and not self._log.appender.is_pausing:
            self.wake()

    def step(self) -> float | None:
        """Run one round of the tail follower; returns the pause in seconds, None to sleep until woken."""
        appender, follower = self._log.appender, self._follower
        before, seen = follower.progress, self.visible_offset()
        began_ns = self._clock.thread_ns()
        appender.is_pausing = True
        try:
            follower.catch_up()
            is_awaited = self._publish()
            self.announce_sealed()
        except OSError as error:
            if error.errno not in LIMITS:
                raise
            logger.warning("the tail follower pauses, and no record is lost: %s", error)
            return _LIMIT_PAUSE_S
        if follower.progress > before:
            used_s = (self._clock.thread_ns() - began_ns) / 1e9
            return min(self._pause_s, used_s * _PAUSE_SHARE) if is_awaited else self._pause_s
        appender.is_pausing, appender.is_idle = False, True
        if follower.progress > before:
            # Another thread dispatched newer records without waking this one, so they are not published yet.
            appender.is_idle = False
            return 0
        if follower.progress < self._log.end_offset:
            appender.is_idle = False
            # Records arrived before the flags were set, wait for a flush, or wait for a retry.
            came = self.visible_offset() > seen and not follower.troubles
            return 0 if came else max(self._pause_s, _WAITING_S)
        return None

    def _publish(self) -> bool:
        """Publish to other processes how far queues and index are complete; returns whether a reader waited for it."""
        reached = self._follower.progress
        if reached > self._progress.state.visible_offset:
            try:
                self._progress.publish(reached)
            except OSError as error:
                if error.errno in LIMITS:
                    raise
                raise self._flusher.fail(
                    f"the progress file could not be written ({error})"
                ) from error
        if reached <= self._woken_to:
            return False
        self._woken_to = reached
        return self._wakes.wake()

    def announce_sealed(self) -> None:
        """Report each segment that was sealed since the last call."""
        sealed = self._log.tail.sealed
        while sealed:
            self._on_sealed(sealed.pop(0))


class CheckpointTask:
    """Syncs derived files, then writes the progress file and the checkpoint. Safe from any thread.

    Attributes:
        durable_offset: the log offset below which the entries of all records are durable.
    """

    def __init__(
        self,
        dispatchers: Sequence[Dispatcher],
        follower: TailFollower,
        flusher: LogFlusher,
        progress: Progress,
        checkpoint: Checkpoint,
        interval_ms: int,
    ) -> None:
        self._dispatchers = dispatchers
        self._follower = follower
        self._flusher = flusher
        self._progress = progress
        self._checkpoint = checkpoint
        self._interval_s = interval_ms / 1000
        self._guard = threading.Lock()
        # The thread that holds the guard.
        self._owner = 0
        self._written: tuple[int, ...] = ()
        self.durable_offset = 0

    def step(self) -> float:
        """Write a checkpoint, unless the store has failed; returns the pause in seconds."""
        self._flusher.settle()
        if self._flusher.failure is None:
            # The next put, flush or close raises the error.
            with contextlib.suppress(StoreFailedError):
                try:
                    self.write()
                except SystemLimitError as error:
                    logger.warning(
                        "queues and index are not synced yet; the next round retries it: %s", error
                    )
        return self._interval_s

    def write(self) -> None:
        """Sync derived files, then write the progress file and the checkpoint; does nothing if nothing has advanced."""
        if self._owner == threading.get_ident():
            raise StorageError(
                "a sync of queues and index that this thread has interrupted is under way: the store cannot be closed, nor "
                "segments be deleted, within a signal handler that interrupts it"
            )
        with self._guard:
            try:
                self._owner = threading.get_ident()
                self._write()
            finally:
                self._owner = 0

    def _write(self) -> None:
        time_ms = self._follower.dispatched_time_ms
        now = (*(d.progress for d in self._dispatchers), self._flusher.flushed_offset)
        if now == self._written:
            return
        try:
            reached = self._sync(time_ms)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # No file was opened, so no durability is in doubt: the next round retries it. Any other errno may
                # be a sync error for bytes that never reached the disk, which the system reports only once.
                raise SystemLimitError(str(error)) from error
            raise self._flusher.fail(
                f"a sync of queues, index, progress file or checkpoint failed ({error})"
            ) from error
        written = (*reached, now[-1])
        # In this order: after an interrupt in between, the next round does it again.
        self.durable_offset = min(written)
        self._written = written

    def _sync(self, time_ms: int) -> list[int]:
        """Sync the dispatchers' files, then the progress file, then the checkpoint: none claims more than is on disk.

        Returns up to where each dispatcher's entries are durable.
        """
        state, flusher = self._progress.state, self._flusher
        state.dispatched = {d.name: d.flush() for d in self._dispatchers}
        state.visible_offset = self._follower.progress
        self._progress.sync()
        # The checkpoint's queue and index times must not be later than what is durable in the log.
        derived = min(time_ms, flusher.flushed_time_ms)
        self._checkpoint.write(Times(flusher.flushed_time_ms, derived, derived))
        return [*state.dispatched.values()]


class RetentionTask:
    """Runs retention at its interval, unless the store has failed."""

    def __init__(self, retention: Retention, flusher: LogFlusher, interval_ms: int) -> None:
        self._retention = retention
        self._flusher = flusher
        self._interval_s = interval_ms / 1000

    def step(self) -> float:
        """Delete what the policies expire; returns the pause in seconds."""
        if self._flusher.failure is None:
            try:
                self._retention.run()
            except Exception:
                # An exception from a plugin must not end the thread, which would stop all writing.
                logger.exception(
                    "the retention run failed; the next run retries it, and writing is not affected"
                )
        return self._interval_s
