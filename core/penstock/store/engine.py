"""The writing half of a store: appends by one process, and the flushes, dispatching and retention that follow.

Order of operations, and why:
    * append, flush policy, visible, dispatch. Readers see a record once it is committed, or, under a policy that
      makes appenders wait, once it is durable.
    * Derived files are synced before progress file and checkpoint are written: those never claim more than is on disk.
    * A clean close has dispatched everything before the abort marker is deleted. If it cannot, the marker
      stays, since RocketMQ 5 does not repair a cleanly closed store whose queues lag the log.

Safe from any thread.
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from penstock._kernel import QueueCursor, SyncGate
from penstock.config.model import Config
from penstock.contracts import (
    Dispatcher,
    FlushPolicy,
    QueueIndex,
    SegmentInfo,
    SpawnWorker,
    Stoppable,
)
from penstock.contracts.findings import Finding
from penstock.dispatch.tail_follower import TailFollower
from penstock.durability.checkpoint import Checkpoint, Times
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.progress import Progress
from penstock.durability.side_folder import SideFolder
from penstock.errors import (
    DiskFullError,
    PenstockError,
    ReadOnlyError,
    StorageError,
    StoreFailedError,
    SystemLimitError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.lock_file import Lock
from penstock.format.names import check_queue, check_topic
from penstock.integrity.background import Upkeep
from penstock.log.commit_log import NO_MESSAGES, NOT_STARTED, CommitLog
from penstock.log.log_tail import LIMITS
from penstock.log.queue_cursors import make_cursor
from penstock.message import Durability, PutStatus
from penstock.retention.runner import Retention
from penstock.runtime.clock import Clock
from penstock.runtime.waking import Wakes
from penstock.runtime.workers import WorkerGroup
from penstock.store.consumer_offsets import ConsumerOffsets
from penstock.store.shutdown import Ending

logger = get_logger(__name__)

Fire = Callable[..., None]
Ask = Callable[..., list[tuple[str, Exception]]]
# How long the tail follower pauses if records may not be dispatched yet, or no file descriptor is free.
_WAITING_S, _LIMIT_PAUSE_S = 0.02, 0.5
# If readers wait, the tail follower pauses this multiple of its round's CPU time: it uses at most a third of a core.
_PAUSE_SHARE = 2
_ACCEPTED = PutStatus.PUT_OK, Durability.ACCEPTED
_ON_DISK = PutStatus.PUT_OK, Durability.ON_DISK
_LATE = PutStatus.FLUSH_DISK_TIMEOUT, Durability.UNKNOWN


@attrs.frozen(kw_only=True)
class AppendPace:
    """How often background work runs, milliseconds."""

    follow_ms: int
    mark_ms: int
    retain_ms: int

    @classmethod
    def of(cls, config: Config) -> "AppendPace":
        """Return the pace of a configuration."""
        return cls(
            follow_ms=config.index.follow_interval_ms,
            mark_ms=config.index.flush_interval_ms,
            retain_ms=config.retention.interval_ms,
        )


@attrs.define(kw_only=True, eq=False, slots=False)
class Engine(Ending):
    """All parts of a store that is open for writing."""

    root: Path
    files: Files
    clock: Clock
    log: CommitLog
    flusher: LogFlusher
    policy: FlushPolicy
    follower: TailFollower
    dispatchers: Sequence[Dispatcher]
    queue_index: QueueIndex
    retention: Retention
    checkpoint: Checkpoint
    progress: Progress
    side: SideFolder
    lock: Lock
    offsets: ConsumerOffsets
    upkeep: Upkeep
    pace: AppendPace
    crew: WorkerGroup
    wakes: Wakes
    fire: Fire
    ask: Ask
    long_topics: bool
    cursors: dict[tuple[str, int], QueueCursor] = attrs.Factory(dict)
    _workers: list[Stoppable] = attrs.Factory(list)
    _follow_worker: Stoppable | None = None
    # Close has begun and has not ended: it is running, or an interrupt aborted it.
    is_interrupted: bool = False
    _guard: threading.Lock = attrs.Factory(threading.Lock)
    _cursors_guard: threading.Lock = attrs.Factory(threading.Lock)
    _marked: tuple[int, ...] = ()

    def connect(self) -> None:
        """Connect the callbacks between the components."""
        self.flusher.on_flushed = self.on_flushed
        self.flusher.on_failed = self.on_failed
        self.flusher.on_durable = self._follow_durable
        self.follower.visible = self.visible_offset
        self.retention.safe_offset = self.safe_offset
        self.retention.make_safe = self._make_safe
        self.retention.on_expired = self._may_delete
        self.retention.on_deleted = self._announce_deleted
        self.retention.on_refusal = self._on_refusal
        policy = self.policy
        settles = policy.appender_waits or policy.hears_appends
        self.log.encoder.make_cursor = self.cursor
        self.log.failed_append = self.failed_append
        self.log.refusal = self.refusal
        self.log.appender.connect(self.settle, *_ACCEPTED, settles=settles)
        self.flusher.group_commit = policy.appender_waits and policy.group_commit
        self.flusher.on_gate = self._wait_at_gate

    def _wait_at_gate(self, gate: SyncGate) -> None:
        policy = self.policy
        if self.flusher.group_commit and not policy.hears_appends:
            self.log.appender.wait_at(
                gate, policy.timeout_ms, _ON_DISK, _LATE, self._follow_durable
            )

    def _on_refusal(self, reason: str | None) -> None:
        (self.log.appender.allow if reason is None else self.log.appender.refuse)(NO_MESSAGES)

    def _make_safe(self) -> None:
        self.flusher.flush()
        self.follower.catch_up()

    def _may_delete(self, info: SegmentInfo, reason: str) -> bool:
        """Return whether no plugin vetoes the deletion of a segment."""
        return not self.ask(
            "penstock_segment_expired",
            path=str(info.path),
            base_offset=info.base_offset,
            size=info.size,
            reason=reason,
        )

    def _announce_deleted(self, info: SegmentInfo, reason: str) -> None:
        self.fire(
            "penstock_segment_deleted",
            path=str(info.path),
            base_offset=info.base_offset,
            reason=reason,
        )
        self.upkeep.sealer.forget(info.base_offset)

    def _announce_corruption(self, finding: Finding) -> None:
        self.fire(
            "penstock_damage_found",
            path=str(finding.path),
            position=finding.position,
            log_offset=finding.log_offset,
            text=finding.text,
        )

    def start(self, spawn: SpawnWorker, *, is_threaded: bool) -> None:
        """Begin background work; `is_threaded` is False if the workers of `spawn` run only when called."""
        self.follower.on_lost = self.flusher.lost
        self._follow_worker = spawn("penstock-follow", self._follow)
        self._workers = [
            self._follow_worker,
            spawn("penstock-mark", self._mark_step),
            spawn("penstock-retain", self._retain_step),
            spawn("penstock-watch", self.crew.watch),
        ]
        if is_threaded:
            self.flusher.start(self.progress, self.crew)
        self.log.tail.writer.start(self.flusher)
        with self.log.lock:
            self.log.tail.expect()
        self.policy.start()
        self.log.appender.allow(NOT_STARTED)
        self.upkeep.start(spawn, lambda: self.flusher.flushed_offset, self._announce_corruption)

    # --- appending

    def cursor(self, topic: str, queue: int) -> QueueCursor:
        """Return the cursor of a queue; topic and queue are checked the first time."""
        cursor = self.cursors.get((topic, queue))
        if cursor is None:
            topic, queue = check_topic(topic, long=self.long_topics), check_queue(queue)
            with self._cursors_guard:
                cursor = self.cursors.get((topic, queue))
                if cursor is None:
                    cursor = make_cursor(self.queue_index, topic, queue)
                    self.offsets.queue_begins(topic, queue, cursor.next_offset)
                    self.cursors[topic, queue] = cursor
        return cursor

    def refusal(self) -> Exception | None:
        """Return why messages are refused now; None if they are accepted."""
        reason = self.retention.refusal
        return self.flusher.failure or (None if reason is None else ReadOnlyError(reason))

    def failed_append(self, error: OSError) -> PenstockError:
        """Return the error for an append that the system failed: disk full, or a failure that stops all writing."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(self.log.log.folder, 0)
        return self.flusher.fail(f"an append failed ({error})")

    def settle(self, end_offset: int, wait: bool) -> tuple[PutStatus, Durability]:
        """Apply the flush policy to an appended record; returns the put's status and durability."""
        policy = self.policy
        if policy.hears_appends:
            policy.after_append(end_offset)
        if not policy.appender_waits:
            if self.log.appender.is_idle:
                self._wake_follower()
            return _ACCEPTED
        if not wait:
            policy.request()
            return _ACCEPTED
        if self.flusher.wait(end_offset, policy.timeout_ms, policy.request):
            return _ON_DISK
        return _LATE

    # --- dispatching

    def trouble(self, name: str) -> str | None:
        """Return the error that stops a dispatcher; None if it works."""
        trouble = self.follower.troubles.get(name)
        return repr(trouble.error) if trouble else None

    def visible_offset(self) -> int:
        """Return the log offset up to which readers may see records."""
        return (
            self.flusher.flushed_offset
            if self.policy.appender_waits
            else self.log.log.committed_offset
        )

    def dispatched_offset(self) -> int:
        """Dispatch all visible records; returns the log offset that all dispatchers have reached."""
        self.follower.catch_up()
        return self.follower.progress

    def show_written(self) -> None:
        """Commit the records that the segment writer still buffers, so that readers of this process see them."""
        if self.log.tail.writer.commits_at_once:
            return
        # After a failure of the store reading continues, with the records committed before.
        with contextlib.suppress(StoreFailedError):
            self.flusher.commit()

    def _wake_follower(self) -> None:
        self.log.appender.is_idle = False
        if self._follow_worker is not None:
            self._follow_worker.wake()

    def _follow_durable(self) -> None:
        # Under a policy that waits, readers see a record only once it is durable.
        if self.policy.appender_waits and not self.log.appender.is_pausing:
            self._wake_follower()

    def _follow(self) -> float | None:
        """Run one round of the tail follower; returns the pause in seconds, None to sleep until woken."""
        before, seen = self.follower.progress, self.visible_offset()
        pause, began_ns = self.pace.follow_ms / 1000, self.clock.thread_ns()
        self.log.appender.is_pausing = True
        try:
            self.follower.catch_up()
            is_awaited = self._publish()
            self._announce_sealed()
        except OSError as error:
            if error.errno not in LIMITS:
                raise
            logger.warning("the tail follower pauses, and no record is lost: %s", error)
            return _LIMIT_PAUSE_S
        if self.follower.progress > before:
            used_s = (self.clock.thread_ns() - began_ns) / 1e9
            return min(pause, used_s * _PAUSE_SHARE) if is_awaited else pause
        self.log.appender.is_pausing, self.log.appender.is_idle = False, True
        if self.follower.progress > before:
            # Another thread dispatched newer records without waking this one, so they are not published yet.
            self.log.appender.is_idle = False
            return 0
        if self.follower.progress < self.log.end_offset:
            self.log.appender.is_idle = False
            # Records arrived before the flags were set, wait for a flush, or wait for a retry.
            came = self.visible_offset() > seen and not self.follower.troubles
            return 0 if came else max(pause, _WAITING_S)
        return None

    def _publish(self) -> bool:
        """Publish to other processes how far queues and index are complete; returns whether a reader waited for it."""
        if self.follower.progress > self.progress.state.visible_offset:
            self.progress.state.visible_offset = self.follower.progress
            self.progress.write()
        return self.wakes.wake()

    def _announce_sealed(self) -> None:
        sealed = self.log.tail.sealed
        while sealed:
            segment = sealed.pop(0)
            self.log.tail.allocator.sealed(segment.path)
            self.fire(
                "penstock_segment_sealed",
                path=str(segment.path),
                base_offset=segment.base_offset,
                size=segment.capacity,
            )
            self.upkeep.wake()

    # --- marks

    def _mark_step(self) -> float:
        self.flusher.settle()
        if self.flusher.failure is None:
            # The next put, flush or close raises the error.
            with contextlib.suppress(StoreFailedError):
                try:
                    self.mark()
                except SystemLimitError as error:
                    logger.warning("queues and index are not synced yet, to be retried: %s", error)
        return self.pace.mark_ms / 1000

    def mark(self) -> None:
        """Sync derived files, then write the progress file and the checkpoint."""
        with self._guard:
            time_ms = self.follower.dispatched_time_ms
            now = (*(d.progress for d in self.dispatchers), self.flusher.flushed_offset)
            if now == self._marked:
                return
            try:
                reached = {d.name: d.flush() for d in self.dispatchers}
                self.progress.state.dispatched = reached
                self.progress.state.visible_offset = self.follower.progress
                self.progress.sync()
                # The checkpoint's queue and index times must not be later than what is durable in the log.
                derived = min(time_ms, self.flusher.flushed_time_ms)
                self.checkpoint.write(Times(self.flusher.flushed_time_ms, derived, derived))
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    # No file was opened, so no durability is in doubt: the next round retries it. Any other errno may
                    # be a sync error for bytes that never reached the disk, which the system reports only once.
                    raise SystemLimitError(str(error)) from error
                raise self.flusher.fail(
                    f"a sync of queues, index, progress file or checkpoint failed ({error})"
                ) from error
            self._marked = now

    def on_flushed(self, offset: int) -> None:
        """Record in the progress file that the log is durable up to `offset`; the flusher calls it after each sync."""
        self.progress.state.flushed_offset = offset
        self.progress.state.last_time_ms = self.log.last_time_ms
        self.progress.write()

    def on_failed(self, failure: StoreFailedError) -> None:
        """Record in the progress file, if possible, that a sync failed, and notify the plugins."""
        state = self.progress.state
        state.failed, state.flushed_offset = True, min(state.flushed_offset, failure.durable_offset)
        try:
            self.progress.write()
        except OSError:
            logger.exception("the failure could not be recorded in the progress file")
        self.fire("penstock_store_failed", root=str(self.root), reason=failure.reason)

    # --- retention

    def _retain_step(self) -> float:
        if self.flusher.failure is None:
            try:
                self.retention.run()
            except Exception:
                # An exception from a plugin must not end the thread, which would stop all writing.
                logger.exception(
                    "the retention run failed; the next run retries it, and writing is not affected"
                )
        return self.pace.retain_ms / 1000

    def safe_offset(self) -> int:
        """Return the log offset below which everything is durable and dispatched."""
        return min(self.flusher.flushed_offset, self.follower.progress)

    def stats(self) -> dict[str, object]:
        """Return the figures of `Store.stats()` that only a writing store has."""
        failure, tail = self.flusher.failure, self.log.tail
        used = {"write": tail.writer, "alloc": tail.allocator, "flush": self.policy}
        return {
            "flushed_offset": self.flusher.flushed_offset,
            "flushes": self.flusher.count,
            "failure": str(failure) if failure else None,
            "append_lock": self.log.lock.stats(),
            "strategies": {kind: {"name": s.name, **s.stats()} for kind, s in used.items()},
            "dispatchers": {
                d.name: {"progress": d.progress, "error": self.trouble(d.name), **d.stats()}
                for d in self.dispatchers
            },
            "upkeep": self.upkeep.stats(),
        }

    # --- closing

    def close(self) -> None:
        """Close cleanly; raises the reason if that is not possible."""
        try:
            self._stop()
            self.crew.check_ended()
            self._close_cleanly()
        except OSError as error:
            raise StorageError(
                f"the store {self.root} could not be closed cleanly ({error}); it stays marked as not cleanly "
                f"closed, and the next open for writing recovers it"
            ) from error
        finally:
            self._release_all()
            self.is_interrupted = False

    def _stop(self) -> None:
        self.retention.stop(self.crew.limit_s)
        self.upkeep.stop()
        for worker in self._workers:
            worker.stop()
        self.policy.close()
        # The strategies' own threads as well.
        self.crew.stop()
