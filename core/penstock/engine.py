"""The writing half of a store: one process appends, and everything that follows from it happens here.

Order of things, and why:
    * append -> (flush policy) -> visible -> dispatch. Readers see a record once it is committed, or,
      under a policy that makes appenders wait, once it is durable.
    * Derived files are synced first, then the progress file and the checkpoint say so: a mark is
      never ahead of what it speaks of.
    * A clean close has dispatched everything before the abort marker goes; if it cannot, the marker
      stays, since RocketMQ 5 does not mend a cleanly closed store whose queues are behind.

Safe from any thread.
"""

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from penstock.checkpoint import Checkpoint, Times
from penstock.clock import Clock
from penstock.commitlog import CommitLog
from penstock.contracts import (
    Dispatcher,
    FlushPolicy,
    QueueIndex,
    SegmentInfo,
    SpawnWorker,
    Stoppable,
)
from penstock.dispatch import TailFollower
from penstock.errors import (
    DiskFullError,
    PenstockError,
    StorageError,
    StoreFailedError,
)
from penstock.files import Files, Lock
from penstock.findings import Finding
from penstock.flushing import LogFlusher
from penstock.lane import Lane
from penstock.message import Durability, PutStatus
from penstock.names import check_queue, check_topic
from penstock.offsets import ConsumerOffsets
from penstock.progress import CleanMark, Progress, SideFolder, fingerprint, vouched_for
from penstock.retention import Retention
from penstock.upkeep import Upkeep

logger = logging.getLogger(__name__)

Fire = Callable[..., None]
Ask = Callable[..., list[tuple[str, Exception]]]
# How long the tail follower pauses when records are there that may not be dispatched yet.
_WAITING_S = 0.02


@attrs.frozen(kw_only=True)
class Pace:
    """How often background work runs, milliseconds."""

    follow_ms: int
    mark_ms: int
    retain_ms: int


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
    retention: Retention
    checkpoint: Checkpoint
    progress: Progress
    side: SideFolder
    lock: Lock
    offsets: ConsumerOffsets
    upkeep: Upkeep
    pace: Pace
    fire: Fire
    ask: Ask
    body_bytes_max: int
    lanes: dict[tuple[str, int], Lane] = attrs.Factory(dict)
    _workers: list[Stoppable] = attrs.Factory(list)
    _follow_worker: Stoppable | None = None
    _idle: bool = True
    _closed: bool = False
    _guard: threading.Lock = attrs.Factory(threading.Lock)
    _lane_guard: threading.Lock = attrs.Factory(threading.Lock)
    _marked: tuple[int, ...] = ()

    def connect(self) -> None:
        """Let the parts tell each other what they must know."""
        self.flusher.on_flushed = self.on_flushed
        self.flusher.on_failed = self.on_failed
        self.follower.visible = self.visible_offset
        self.retention.safe_offset = self.safe_offset
        self.retention.make_safe = self._make_safe
        self.retention.on_expired = self._may_go
        self.retention.on_deleted = self._tell_deleted

    def _make_safe(self) -> None:
        self.flusher.flush()
        self.follower.catch_up()

    def _may_go(self, info: SegmentInfo, reason: str) -> bool:
        return not self.ask(
            "penstock_segment_expired",
            path=str(info.path),
            base_offset=info.base_offset,
            size=info.size,
            reason=reason,
        )

    def _tell_deleted(self, info: SegmentInfo, reason: str) -> None:
        self.fire(
            "penstock_segment_deleted",
            path=str(info.path),
            base_offset=info.base_offset,
            reason=reason,
        )
        self.upkeep.sealer.forget(info.base_offset)

    def _tell_damage(self, finding: Finding) -> None:
        self.fire(
            "penstock_damage_found",
            path=str(finding.path),
            position=finding.position,
            log_offset=finding.log_offset,
            text=finding.text,
        )

    def start(self, spawn: SpawnWorker) -> None:
        """Begin background work."""
        self._follow_worker = spawn("penstock-follow", self._follow)
        self._workers = [
            self._follow_worker,
            spawn("penstock-mark", self._mark_step),
            spawn("penstock-retain", self._retain_step),
        ]
        self.log.tail.writer.start(self.flusher)
        with self.log.lock:
            self.log.tail.expect()
        self.policy.start()
        self.upkeep.start(spawn, lambda: self.flusher.flushed_offset, self._tell_damage)

    # --- appending

    def lane(self, topic: str, queue: int) -> Lane:
        """Return the lane of a queue; names are checked the first time."""
        lane = self.lanes.get((topic, queue))
        if lane is None:
            check_topic(topic)
            check_queue(queue)
            with self._lane_guard:
                lane = self.lanes.get((topic, queue))
                if lane is None:
                    following = self.queue_index.max_offset(topic, queue)
                    lane = self.lanes[topic, queue] = Lane(topic, queue, following)
        return lane

    def failed_append(self, error: OSError) -> PenstockError:
        """Return what an append that failed in the system means: no room, or the end of writing."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(self.log.log.folder, 0)
        return self.flusher.fail(f"an append failed ({error})")

    def settle(self, end_offset: int, *, wait: bool) -> tuple[PutStatus, Durability]:
        """Do for an appended record what the flush policy asks; says what is known afterwards."""
        policy = self.policy
        policy.after_append(end_offset)
        if self._idle:
            self._wake_follower()
        if not policy.appender_waits:
            return PutStatus.PUT_OK, Durability.ACCEPTED
        if not wait:
            policy.request()
            return PutStatus.PUT_OK, Durability.ACCEPTED
        if self.flusher.wait(end_offset, policy.timeout_ms, policy.request):
            return PutStatus.PUT_OK, Durability.ON_DISK
        return PutStatus.FLUSH_DISK_TIMEOUT, Durability.UNKNOWN

    # --- dispatching

    def visible_offset(self) -> int:
        """Return the log offset up to which readers may see records."""
        return (
            self.flusher.flushed_offset
            if self.policy.appender_waits
            else self.log.log.committed_offset
        )

    def dispatched_offset(self) -> int:
        """Bring everything up that is visible; returns the log offset that all have reached."""
        self.follower.catch_up()
        return self.follower.progress

    def show_written(self) -> None:
        """Let readers of this process see what a writer still holds back."""
        # Once the store has failed reading goes on, with what was handed over before.
        with contextlib.suppress(StoreFailedError):
            self.flusher.commit()

    def _wake_follower(self) -> None:
        self._idle = False
        if self._follow_worker is not None:
            self._follow_worker.wake()

    def _follow(self) -> float | None:
        """One round of the tail follower; None when there is nothing to wait for."""
        before = self.follower.progress
        self.follower.catch_up()
        self._publish()
        self._tell_sealed()
        pause = self.pace.follow_ms / 1000
        if self.follower.progress > before:
            return pause
        self._idle = True
        if self.follower.progress < self.log.end_offset:
            # Something came between the look and the flag, waits for a flush, or is to be tried again.
            self._idle = False
            return max(pause, _WAITING_S)
        return None

    def _publish(self) -> None:
        """Tell readers in other processes how far queues and index have everything."""
        if self.follower.progress > self.progress.state.visible_offset:
            self.progress.state.visible_offset = self.follower.progress
            self.progress.write()

    def _tell_sealed(self) -> None:
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
        if self.flusher.failure is None:
            # Whoever puts, flushes or closes next gets the error.
            with contextlib.suppress(StoreFailedError):
                self.mark()
        return self.pace.mark_ms / 1000

    def mark(self) -> None:
        """Sync derived files, then write down how far everything is durable."""
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
                # Queue and index times count only what the log has durable as well.
                derived = min(time_ms, self.flusher.flushed_time_ms)
                self.checkpoint.write(Times(self.flusher.flushed_time_ms, derived, derived))
            except OSError as error:
                raise self.flusher.fail(
                    f"a sync of queues, index or marks failed ({error})"
                ) from error
            self._marked = now

    def on_flushed(self, offset: int) -> None:
        """Write down that the log is durable up to `offset`; called by the flusher after each sync."""
        self.progress.state.flushed_offset = offset
        self.progress.write()

    def on_failed(self, failure: StoreFailedError) -> None:
        """Write down that a sync failed, as well as can be, and tell the plugins."""
        self.progress.state.failed = True
        try:
            self.progress.write()
        except OSError:
            logger.exception("the failure could not be written down")
        self.fire("penstock_store_failed", root=str(self.root), reason=failure.reason)

    # --- retention

    def _retain_step(self) -> float:
        if self.flusher.failure is None:
            try:
                self.retention.run()
            except Exception:
                # A plugin's mistake among them must not end the thread, which would end all writing.
                logger.exception("retention stopped early; tried again later")
        return self.pace.retain_ms / 1000

    def safe_offset(self) -> int:
        """Return the log offset below which everything is durable and dispatched."""
        return min(self.flusher.flushed_offset, self.follower.progress)

    def strategies(self) -> dict[str, dict[str, object]]:
        """Return the strategies in use and their figures, by section."""
        tail = self.log.tail
        used = {"write": tail.writer, "alloc": tail.allocator, "flush": self.policy}
        return {kind: {"name": each.name, **each.stats()} for kind, each in used.items()}

    def stats(self) -> dict[str, object]:
        """Return the figures of `Store.stats()` that only a writing store has."""
        failure, troubles = self.flusher.failure, self.follower.troubles
        return {
            "flushed_offset": self.flusher.flushed_offset,
            "flushes": self.flusher.count,
            "failure": str(failure) if failure else None,
            "append_lock": self.log.lock.stats(),
            "strategies": self.strategies(),
            "dispatchers": {
                d.name: {
                    "progress": d.progress,
                    "error": repr(troubles[d.name].error) if d.name in troubles else None,
                    **d.stats(),
                }
                for d in self.dispatchers
            },
            "upkeep": self.upkeep.stats(),
        }

    # --- closing

    def close(self) -> None:
        """Close cleanly if that is possible; raises what kept the store from it."""
        if self._closed:
            return
        self._closed = True
        self.retention.stop()
        self.upkeep.stop()
        for worker in self._workers:
            worker.stop()
        self.policy.close()
        try:
            self._close_cleanly()
        finally:
            self.release()

    def _close_cleanly(self) -> None:
        self.log.stop()
        self.flusher.flush()
        self.follower.catch_up()
        self.mark()
        if self.follower.progress < self.log.end_offset:
            names = ", ".join(self.follower.troubles) or "a dispatcher"
            raise StorageError(
                f"{names} is behind the log, so the store is left marked as not cleanly closed; "
                f"nothing is lost, the next open brings it up"
            )
        self.log.log.close()
        self.log.tail.close()
        digest = fingerprint(self.files, vouched_for(self.root))
        self.side.write_clean(
            CleanMark(
                log_end=self.log.end_offset, last_time_ms=self.log.last_time_ms, digest=digest
            )
        )
        self.files.remove(self.root / "abort")
        self.files.sync_folder(self.root)

    def release(self) -> None:
        """Let go of files and lock, whatever state the store is in."""
        self.log.log.close()
        try:
            self.log.tail.close()
        except OSError:
            logger.exception("files made in advance could not be removed; the next open does")
        for dispatcher in self.dispatchers:
            dispatcher.close()
        self.progress.close()
        self.lock.release()
