"""The writing half of a store: appends by one process, the background work that follows, and the clean close.

Each task of the background work has a `step` for a worker of its own: the worker runs it at once, and again after as
many seconds as it returns.

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

from penstock.config.model import Config
from penstock.contracts import (
    Dispatcher,
    Extension,
    FlushPolicy,
    QueueIndex,
    RetentionPolicy,
    SegmentInfo,
    SpawnWorker,
    Stoppable,
)
from penstock.dispatch.rebuild import listed_topics
from penstock.dispatch.tail_follower import TailFollower
from penstock.durability.log_flusher import LogFlusher, SyncThread
from penstock.durability.progress import Checkpoint, Progress, Times
from penstock.durability.side_folder import (
    CleanClose,
    RemovedTopicsFile,
    SideFolder,
    fingerprint,
    vouched_for,
    write_manifest,
)
from penstock.errors import (
    ConfigError,
    CorruptionError,
    StorageError,
    StoreFailedError,
    SystemLimitError,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.lock_file import Lock
from penstock.integrity.upkeep import Upkeep
from penstock.log.commit_log import LIMITS, NOT_STARTED, CommitLog
from penstock.log.segment import Segment
from penstock.message import Durability, PutStatus
from penstock.retention.runner import Retention
from penstock.runtime.clock import Clock
from penstock.runtime.waking import Wakes
from penstock.runtime.workers import WorkerGroup, is_for_program, is_interrupt
from penstock.store.consumer_offsets import ConsumerOffsets
from penstock.store.copying import Copying
from penstock.store.queue_cursors import QueueCursors

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

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._log, self._flusher, self._follower = engine.log, engine.flusher, engine.follower
        self._waits = engine.policy.waits
        self._progress = engine.progress
        self._pause_s = engine.config.index.follow_interval_ms / 1000
        # The log offset up to which waiting readers were woken: waking them again for nothing new costs each of them a
        # round.
        self._woken_to = -1
        self.worker: Stoppable | None = None

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
        before, seen = follower.progress, self._flusher.visible_offset
        began_ns = self._engine.clock.thread_ns()
        appender.is_pausing = True
        try:
            follower.catch_up()
            is_awaited = self._publish()
            if self._engine.copying is not None:
                self._engine.copying.advanced()
            self.announce_sealed()
        except OSError as error:
            if error.errno not in LIMITS:
                raise
            logger.warning("the tail follower pauses, and no record is lost: %s", error)
            return _LIMIT_PAUSE_S
        if follower.progress > before:
            used_s = (self._engine.clock.thread_ns() - began_ns) / 1e9
            return min(self._pause_s, used_s * _PAUSE_SHARE) if is_awaited else self._pause_s
        appender.is_pausing, appender.is_idle = False, True
        if follower.progress > before:
            # Another thread dispatched newer records without waking this one, so they are not published yet.
            appender.is_idle = False
            return 0
        if follower.progress < self._log.end_offset:
            appender.is_idle = False
            # Records arrived before the flags were set, wait for a flush, or wait for a retry.
            came = self._flusher.visible_offset > seen and not follower.troubles
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
        return self._engine.wakes.wake()

    def announce_sealed(self) -> None:
        """Report each segment that was sealed since the last call."""
        sealed = self._log.tail.sealed
        while sealed:
            self._engine.report_sealed(sealed.pop(0))


class CheckpointTask:
    """Syncs derived files, then writes the progress file and the checkpoint. Safe from any thread.

    Attributes:
        durable_offset: the log offset below which the entries of all records are durable.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._follower, self._flusher = engine.follower, engine.flusher
        self._interval_s = engine.config.index.flush_interval_ms / 1000
        self._guard = threading.Lock()
        # The thread that holds the guard.
        self._owner = 0
        self._written: tuple[int, ...] = ()
        self.durable_offset = 0

    def step(self) -> float:
        """Write a checkpoint, unless the store has failed; returns the pause in seconds."""
        self._flusher.collect_results()
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

    def write(self, *, again: bool = False) -> None:
        """Sync derived files, then write progress file and checkpoint, if any has advanced or `again`."""
        if self._owner == threading.get_ident():
            raise StorageError(
                "a sync of queues and index that this thread has interrupted is under way: the store cannot be closed, "
                "nor segments be deleted, within a signal handler that interrupts it"
            )
        with self._guard:
            try:
                self._owner = threading.get_ident()
                self._write(again=again)
            finally:
                self._owner = 0

    def _write(self, *, again: bool) -> None:
        time_ms = self._follower.dispatched_time_ms
        now = (*(d.progress for d in self._engine.dispatchers), self._flusher.flushed_offset)
        if now == self._written and not again:
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
        state, flusher = self._engine.progress.state, self._flusher
        state.dispatched = {d.name: d.flush() for d in self._engine.dispatchers}
        state.visible_offset = self._follower.progress
        self._engine.progress.sync()
        # The checkpoint's queue and index times must not be later than what is durable in the log.
        derived = min(time_ms, flusher.flushed_time_ms)
        self._engine.checkpoint.write(Times(flusher.flushed_time_ms, derived, derived))
        return [*state.dispatched.values()]


def _is_behind(extension: Extension) -> bool:
    try:
        return extension.is_behind
    except Exception:
        logger.exception("extension %r failed in is_behind; retention goes on", extension.name)
        return False


# How long retention waits for what came due before the opening, and how often it looks.
_BEHIND_MS, _SOON_S = 60_000, 0.01
Fire = Callable[..., None]
Ask = Callable[..., list[tuple[str, BaseException]]]
_ACCEPTED = PutStatus.PUT_OK, Durability.ACCEPTED
_ON_DISK = PutStatus.PUT_OK, Durability.ON_DISK
_LATE = PutStatus.FLUSH_DISK_TIMEOUT, Durability.UNKNOWN


@attrs.define(kw_only=True, eq=False, slots=False)
class Engine:
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
    policies: Sequence[RetentionPolicy]
    checkpoint: Checkpoint
    progress: Progress
    side_folder: SideFolder
    lock: Lock
    offsets: ConsumerOffsets
    upkeep: Upkeep
    config: Config
    worker_group: WorkerGroup
    wakes: Wakes
    fire: Fire
    ask: Ask
    cursors: QueueCursors
    removed_topics: RemovedTopicsFile
    extensions: Sequence[Extension] = ()
    # Whether the extensions are not attached yet.
    is_opening: bool = False
    # Those that may have yet to put what came due before the opening; until when retention waits for them; and whether
    # what they put may not be durable yet.
    _behind: Sequence[Extension] = ()
    _behind_until_ms: int = 0
    _puts_due: bool = False
    copying: Copying | None = None
    _workers: list[Stoppable] = attrs.Factory(list)
    # Close has begun and has not ended: it is running, or an interrupt aborted it.
    is_interrupted: bool = False

    following: FollowerTask = attrs.field(init=False)
    checkpoints: CheckpointTask = attrs.field(init=False)
    retention: Retention = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.following, self.checkpoints = FollowerTask(self), CheckpointTask(self)
        self.retention = Retention(
            self, self.log, self.policies, self.dispatchers, files=self.files, clock=self.clock,
            pause_ms=self.config.retention.pause_ms,
        )  # fmt: skip
        policy, appender = self.policy, self.log.appender
        self.hears_appends = type(policy).after_append is not FlushPolicy.after_append
        applies_always = policy.waits or self.hears_appends
        appender.connect(self.apply_policy, *_ACCEPTED, applies_always=applies_always)
        if policy.waits and not self.hears_appends:
            appender.wait_at(
                self.flusher.gate, policy.timeout_ms, _ON_DISK, _LATE, self.following.wake_if_durable
            )  # fmt: skip
        self._copies = self.copying.gate if self.copying else None
        appender.wait_for(self._copies)

    @property
    def waits_for_copies(self) -> bool:
        """Whether a put with `wait=True` waits for copies."""
        return self._copies is not None

    # --- what retention calls

    def attached(self, extensions: Sequence[Extension]) -> None:
        """Let retention begin, once these extensions have put what came due before the opening, or after a minute."""
        self._behind, self._behind_until_ms = extensions, self.clock.monotonic_ms() + _BEHIND_MS
        self._puts_due, self.is_opening = bool(extensions), False

    def _is_behind(self) -> bool:
        waits = self.clock.monotonic_ms() < self._behind_until_ms
        self._behind = [each for each in self._behind if waits and _is_behind(each)]
        return bool(self._behind)

    def safe_offset(self) -> int:
        """Return the log offset below which everything is durable: records, and their entries in queues and index."""
        if self._puts_due:
            # A record that came due must not go before its copy is durable.
            return 0
        return min(
            self.flusher.flushed_offset, self.follower.progress, self.checkpoints.durable_offset
        )

    def make_safe(self) -> None:
        """Advance the safe offset to the log's end."""
        self.flusher.flush()
        self.follower.catch_up()
        self.checkpoints.write()
        self._puts_due = False

    def may_delete(self, info: SegmentInfo, reason: str) -> bool:
        """Return whether no plugin vetoes the deletion of a segment."""
        return not self.ask(
            "penstock_segment_expired",
            path=str(info.path),
            base_offset=info.base_offset,
            size=info.size,
            reason=reason,
        )

    def deleted(self, info: SegmentInfo, reason: str) -> None:
        """Report that a segment was deleted."""
        self.fire(
            "penstock_segment_deleted",
            path=str(info.path),
            base_offset=info.base_offset,
            reason=reason,
        )
        self.upkeep.sealer.forget(info.base_offset)

    # --- background work

    def report_sealed(self, segment: Segment) -> None:
        """Report a segment that has become full."""
        self.log.tail.allocator.sealed(segment.path)
        self.fire(
            "penstock_segment_sealed",
            path=str(segment.path),
            base_offset=segment.base_offset,
            size=segment.capacity,
        )
        self.upkeep.wake()

    def start(self, spawn: SpawnWorker, *, is_threaded: bool) -> None:
        """Begin background work; `is_threaded` is False if the workers of `spawn` may run only when called."""
        self.is_opening = is_threaded
        # First: an allocator that reuses files looks for those that there are, and retention adds to them.
        with self.log.lock:
            self.log.tail.expect()
        self.following.worker = spawn("penstock-follow", self.following.step)
        self._workers = [
            self.following.worker,
            spawn("penstock-mark", self.checkpoints.step),
            spawn("penstock-retain", self.retain),
            spawn("penstock-watch", self.worker_group.watch),
        ]
        wake = None
        if not is_threaded:
            self._workers.append(spawn("penstock-sync", self.flusher.gate.run))
            wake = self._workers[-1].wake
        if self.copying is not None:
            self.copying.log.removed_topics = self.removed_topics.read().table
            self.flusher.gate.ring(self.copying.log.bell)
        if is_threaded:
            self.worker_group.adopt(SyncThread(self.flusher.gate, self.worker_group.limit_s))
        self.flusher.start(self.following.wake_if_durable, wake)
        if self.copying is not None:
            self.copying.start(spawn, is_threaded=is_threaded)
        self.log.tail.writer.start(self.flusher)
        self.policy.start()
        self.log.appender.allow(NOT_STARTED)
        self.upkeep.start(spawn)

    def run_retention(self) -> int:
        """Delete what the policies expire, unless the store fails; returns how many segments were deleted."""
        while self._is_behind() and not self.retention.is_stopped(_SOON_S):
            pass
        return 0 if self.flusher.failure else self.retention.run()

    def retain(self) -> float:
        """Delete what the policies expire, unless the store has failed; returns the pause in seconds."""
        if self.is_opening:
            return _SOON_S
        if self.flusher.failure is None:
            try:
                self.run_retention()
            except BaseException as error:
                # An exception from a plugin must not end the thread, which would stop all writing.
                if is_for_program(error):
                    raise
                logger.exception(
                    "the retention run failed; the next run retries it, and writing is not affected"
                )
        return self.config.retention.interval_ms / 1000

    # --- appending

    def remove_topic(self, topic: str) -> None:
        """Remove a topic and its messages; see `LowLevelStore.remove_topic`."""
        index = self.queue_index
        if type(index).remove_topic is QueueIndex.remove_topic:
            raise ConfigError(
                f"topic {topic} cannot be removed: the dispatcher {index.name} of this store has no way to remove the "
                "queues of a topic; nothing was changed"
            )
        self.log.lock.refuse_within()
        # No cursor is made, and nothing is appended, between the mark and the removal of the queues.
        with self.cursors.guard, self.log.lock:
            log_end = self.log.end_offset
            try:
                try:
                    with self.removed_topics.replaced(
                        self.removed_topics.read().with_removed(topic, log_end)
                    ):
                        self.cursors.restart(topic)
                        self.remove_queues(topic, log_end)
                    self.remove_offsets(topic)
                finally:
                    if self.copying is not None:
                        # Copies take no offsets that were read before this, and no record that was put after it.
                        self.copying.log.removed_topics = self.removed_topics.read().table
            except Exception:
                raise
            except BaseException as error:
                # Ctrl-C, or a signal handler that ends the program. The next opening completes what was recorded.
                self.flusher.fail(f"the removal of topic {topic} was interrupted ({error!r})")
                raise
        self.log.encoder.forget(topic)

    def remove_queues(self, topic: str, before: int) -> None:
        """Remove the queues of a topic that is recorded as removed."""
        try:
            self.queue_index.remove_topic(topic, before)
        except Exception as error:
            raise self.flusher.fail(
                f"topic {topic} is recorded as removed, but its queues could not be removed ({error!r})"
            ) from error

    def remove_offsets(self, topic: str) -> None:
        """Remove the offsets of groups in a topic that is recorded as removed."""
        try:
            self.offsets.remove_topic(topic)
        except CorruptionError:
            raise
        except StorageError as error:
            # Groups would skip the messages of a new topic of the same name. The next opening sets their offsets back.
            raise self.flusher.fail(
                f"topic {topic} was removed, but not the offsets of groups in it ({error})"
            ) from error

    def apply_policy(
        self, end_offset: int, wait: bool, *, is_new: bool = True
    ) -> tuple[PutStatus, Durability]:
        """Apply the flush policy to an appended record, and wait for copies; returns status and durability.

        `is_new` says whether the policy has not heard of the record yet.
        """
        here = self._apply_flush_policy(end_offset, wait, is_new)
        if not wait or self._copies is None or here is _LATE:
            return here
        # Copies get only what is committed.
        self.show_written()
        return self._copies.wait(end_offset)

    def _apply_flush_policy(
        self, end_offset: int, wait: bool, is_new: bool
    ) -> tuple[PutStatus, Durability]:
        policy = self.policy
        try:
            if self.hears_appends and is_new:
                policy.after_append(end_offset)
            if not policy.waits:
                if self.log.appender.is_idle:
                    self.following.wake()
                return _ACCEPTED
            if not wait:
                policy.request()
                return _ACCEPTED
            if self.flusher.wait(end_offset, policy.timeout_ms):
                return _ON_DISK
        except Exception as error:
            self._fail_by_policy(error)
            raise
        return _LATE

    def request_flush(self) -> None:
        """Make what was appended durable soon."""
        try:
            self.policy.request()
        except Exception as error:
            self._fail_by_policy(error)
            raise

    def _fail_by_policy(self, error: Exception) -> None:
        """Stop the store for an error of the flush policy.

        The record is in the log: after another error, the caller would put it again.
        """
        if not isinstance(error, StoreFailedError) and not is_interrupt(error):
            raise self.flusher.fail(
                f"flush policy {self.policy.name!r} failed after an append, which is in the log ({error!r})"
            ) from error

    # --- dispatching

    def trouble(self, name: str) -> str | None:
        """Return the error that stops a dispatcher; None if it works."""
        trouble = self.follower.troubles.get(name)
        return repr(trouble.error) if trouble else None

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

    def stats(self) -> dict[str, object]:
        """Return the figures of `Store.stats()` that only a writing store has."""
        failure, tail = self.flusher.failure, self.log.tail
        used = {"write": tail.writer, "alloc": tail.allocator, "flush": self.policy}
        return {
            "flushed_offset": self.flusher.flushed_offset,
            "flushes": self.flusher.gate.count,
            "failure": str(failure) if failure else None,
            "append_lock": self.log.lock.stats(),
            "strategies": {kind: {"name": s.name, **s.stats()} for kind, s in used.items()},
            "dispatchers": {
                d.name: {"progress": d.progress, "error": self.trouble(d.name), **d.stats()}
                for d in self.dispatchers
            },
            "extensions": {each.name: each.stats() for each in self.extensions},
            "replica": dict(self.copying.log.status) if self.copying else None,
            "upkeep": self.upkeep.stats(),
        }

    # --- closing

    def close(self) -> None:
        """Close cleanly; raises the reason if that is not possible."""
        try:
            self._stop()
            self.worker_group.check_ended()
            self._close_cleanly()
        except OSError as error:
            raise StorageError(
                f"the store {self.root} could not be closed cleanly ({error}); it stays marked as not cleanly "
                f"closed, and the next open for writing recovers it"
            ) from error
        finally:
            self._release_all()
            self.is_interrupted = False

    def abandon(self) -> None:
        """Release a store whose opening failed."""
        try:
            self._stop()
        finally:
            self._release_all()

    def _stop(self) -> None:
        self.retention.stop(self.worker_group.limit_s)
        self.upkeep.stop()
        for worker in self._workers:
            worker.stop()
        self.policy.close()
        # The strategies' own threads as well.
        self.worker_group.stop()

    def _release_all(self) -> None:
        """Release everything now, or once the last thread that could still write has ended."""
        try:
            if self.copying is not None:
                self.copying.close()
        finally:
            self.worker_group.end(self._release)

    def _close_cleanly(self) -> None:
        """Dispatch and sync everything, then mark the store as cleanly closed; raises if a step fails."""
        self.log.stop()
        self.flusher.flush()
        self.follower.finish()
        if self.copying is not None:
            self.copying.close()
        # A store whose records cannot be read back has failed, and is never marked clean.
        self.flusher.check()
        self.checkpoints.write()
        if self.follower.progress < self.log.end_offset:
            names = ", ".join(self.follower.troubles) or "a dispatcher"
            raise StorageError(
                f"{names} lags the log, so the store {self.root} stays marked as not cleanly closed; "
                f"no data is lost, and the next open for writing dispatches the missing records"
            )
        self.log.log.check_there()
        self.flusher.close()
        # Before the fingerprint is taken: this changes the files' times.
        self.log.tail.give_back()
        for dispatcher in self.dispatchers:
            dispatcher.give_back()
        self.log.log.close()
        self.log.tail.close()
        digest = fingerprint(self.files, vouched_for(self.root))
        parts = {
            d.name: part for d in self.dispatchers if (part := d.closing_summary()) is not None
        }
        # Before the clean-close file, without which the manifest is not used.
        write_manifest(self.files, self.root, digest, parts)
        self.side_folder.write_clean(
            CleanClose(
                log_end=self.log.end_offset, last_time_ms=self.log.last_time_ms, digest=digest,
                topics=tuple(sorted(listed_topics(self.files, self.root) or ())),
            )
        )  # fmt: skip
        if self.files.exists(self.root / "abort"):
            self.files.remove(self.root / "abort")
        self.files.sync_folder(self.root)

    def _release(self) -> None:
        """Close all files and release the lock, in whatever state the store is."""
        try:
            parts = [
                self.flusher.close,
                self.log.log.close,
                self.log.tail.close,
                self.progress.close,
                self.wakes.close,
            ]
            for close in (*parts, *(dispatcher.close for dispatcher in self.dispatchers)):
                try:
                    close()
                except Exception:
                    # An exception from one plugin must not prevent the release of the other files and of the lock.
                    logger.exception("%s failed; the next open for writing recovers from it", close)
        finally:
            self.lock.release()
