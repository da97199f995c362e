"""What a store that is open for writing does with its replicator: tells it of new bytes, waits for copies, ends it.

A replicator is code of a plugin. What it raises is logged once, and never fails a put whose message is in the log: its copies then
count as not available.
"""

import threading
from collections.abc import Callable

import attrs

from penstock.contracts import CopyOutcome, CopyState, Replicator, SummaryLine
from penstock.durability.replication_file import ReplicationFile
from penstock.escape import get_logger
from penstock.message import Durability, PutStatus
from penstock.runtime.clock import Clock
from penstock.runtime.workers import WorkerGroup
from penstock.store.copied_log import CopiedLog

logger = get_logger(__name__)

# A replicator answers by its own time-out; one that does not is not waited for much longer.
_GRACE_MS = 1000
# How often the replication file is written if its content has changed, and at least.
_PUBLISH_S, _PUBLISH_MS_MAX = 1.0, 5000

_STATUS = {
    CopyOutcome.ON_DISK: PutStatus.PUT_OK,
    CopyOutcome.RECEIVED: PutStatus.PUT_OK,
    CopyOutcome.LATE: PutStatus.FLUSH_SLAVE_TIMEOUT,
    CopyOutcome.NOT_AVAILABLE: PutStatus.SLAVE_NOT_AVAILABLE,
}
# The durability of a message that is not known to be on this store's disk.
_DURABILITY_THERE = {
    CopyOutcome.ON_DISK: Durability.ON_DISK_THERE,
    CopyOutcome.RECEIVED: Durability.ACCEPTED,
    CopyOutcome.LATE: Durability.UNKNOWN,
    CopyOutcome.NOT_AVAILABLE: Durability.ACCEPTED,
}


def settled(outcome: CopyOutcome, *, is_on_disk: bool) -> tuple[PutStatus, Durability]:
    """Return status and durability of a message by the outcome of its copies, and whether it is on this store's disk."""
    if not is_on_disk:
        return _STATUS[outcome], _DURABILITY_THERE[outcome]
    is_there = outcome is CopyOutcome.ON_DISK
    return _STATUS[outcome], Durability.REPLICATED if is_there else Durability.ON_DISK


class Copying:
    """The replicator of one store, and how the store uses it. Safe from any thread.

    Attributes:
        replicator: the replicator.
        log: the log as it sees it.
        waits: whether puts that wait wait for copies.
    """

    def __init__(
        self,
        replicator: Replicator,
        log: CopiedLog,
        file: ReplicationFile,
        crew: WorkerGroup,
        clock: Clock,
    ) -> None:
        self.replicator = replicator
        self.log = log
        self.waits = bool(replicator.appender_waits)
        self._file = file
        # Its threads.
        self._crew = crew
        self._clock = clock
        self._told = -1
        self._published: list[SummaryLine] = []
        self._published_ms = 0
        self._known: dict[str, tuple[bool, str | None]] = {}
        # Whether `start` was called, and has returned.
        self._has_begun = self._has_started = False
        self._has_raised = self._is_closed = False

    def start(self, newest_ms: int) -> None:
        """Start the replicator, and tell it how far the log is."""
        self._has_begun = True
        self.replicator.start()
        self._has_started = True
        self.advance(newest_ms)

    def advance(self, newest_ms: int) -> None:
        """Tell the replicator if more became visible; `newest_ms` is the store time of a record that was visible before the call.

        Called by the tail follower in each of its rounds, also before `start`.
        """
        if not self._has_started:
            return
        visible = self.log.visible_offset
        if visible > self._told:
            self._told = visible
            if newest_ms:
                self.log.note_time(visible, newest_ms)
            self._tell(visible)

    def _tell(self, visible: int) -> None:
        try:
            self.replicator.advanced(visible)
        except Exception as error:
            self._note_raised("advanced", error)

    def _note_raised(self, call: str, error: Exception) -> None:
        if not self._has_raised:
            self._has_raised = True
            logger.error(
                "the replicator %s failed in %s; puts are stored, but their copies may be missing, and further errors of it "
                "are not logged", self.replicator.name, call, exc_info=error,
            )  # fmt: skip

    # --- puts

    def request(self, end_offset: int, notify: Callable[[CopyOutcome], None]) -> None:
        """Call `notify` once it is known what became of the copies of the bytes below `end_offset`, which are visible."""
        self._tell(end_offset)
        try:
            self.replicator.copied(end_offset, notify)
        except Exception as error:
            self._note_raised("copied", error)
            notify(CopyOutcome.NOT_AVAILABLE)

    def wait(self, end_offset: int) -> CopyOutcome:
        """Return what became of the copies of the bytes below `end_offset`, which are visible.

        No lock of the store is held meanwhile, and signal handlers run.
        """
        answer = _Answer()
        self.request(end_offset, answer.give)
        return answer.take((self.replicator.timeout_ms + _GRACE_MS) / 1000)

    def settle(self, end_offset: int) -> tuple[PutStatus, Durability]:
        """Wait for the copies of a message that ends at `end_offset`; return the status and durability of its put."""
        outcome = self.wait(end_offset)
        return settled(outcome, is_on_disk=self.log.flushed_offset >= end_offset)

    # --- what is shown

    def copies(self) -> list[CopyState]:
        """Return how far each copy is; none if the replicator cannot say it."""
        try:
            return list(self.replicator.copies())
        except Exception as error:
            self._note_raised("copies", error)
            return []

    def summary(self) -> list[SummaryLine]:
        """Return the lines for `Store.summary()`."""
        try:
            return list(self.replicator.summary())
        except Exception as error:
            self._note_raised("summary", error)
            return [SummaryLine("replication", "replication", f"not known: {error}", None)]

    def publish(self) -> float:
        """Write the lines to the replication file if they have changed, and log changes; returns the pause in seconds."""
        lines, now_ms = self.summary(), self._clock.time_ms()
        if lines != self._published or now_ms - self._published_ms >= _PUBLISH_MS_MAX:
            try:
                self._file.write(lines, now_ms)
            except (OSError, ValueError, TypeError) as error:
                logger.warning(
                    "what `penstock stat` shows of copies could not be written: %s", error
                )
            # Not retried at once: the next change comes soon.
            self._published, self._published_ms = lines, now_ms
        self._log_changes()
        return _PUBLISH_S

    def _log_changes(self) -> None:
        """Log each copy that came, went, fell behind, caught up, or has another error than before."""
        found = self.copies()
        now = {each.name: (each.in_sync, each.last_error) for each in found}
        for each in found:
            if self._known.get(each.name) != now[each.name]:
                logger.info("%s: copy %s: %s", self.log.root, each.name, each.text)
        for name in self._known.keys() - now.keys():
            logger.info("%s: copy %s is gone", self.log.root, name)
        self._known = now

    # --- the end

    def fail(self, reason: str) -> None:
        """Tell the replicator that the store has failed."""
        try:
            self.replicator.failed(reason)
        except Exception as error:
            self._note_raised("failed", error)

    def close(self) -> None:
        """Let the replicator send what is left, and end it; does nothing if it was not started, or was closed."""
        if self._is_closed or not self._has_begun:
            return
        if self._has_started:
            self._tell(self.log.visible_offset)
        try:
            self.replicator.close()
        except Exception as error:
            self._note_raised("close", error)
        self._crew.stop()
        for each in self._crew.hanging():
            logger.error(
                "thread %s of the replicator did not end; it is at %s", each.name, each.place
            )
        self._is_closed = True
        try:
            self._file.remove()
        except OSError as error:
            logger.warning("what `penstock stat` shows of copies could not be removed: %s", error)

    def stats(self) -> dict[str, object]:
        """Return the figures of `Store.stats()` about the replicator and its copies."""
        return {
            "name": self.replicator.name,
            "role": self.replicator.role,
            "waits": self.waits,
            **self.replicator.stats(),
        }

    def copy_stats(self) -> list[dict[str, object]]:
        """Return the figures of each copy."""
        return [attrs.asdict(each) for each in self.copies()]


class _Answer:
    """The outcome for which one thread waits. Each waiter has a lock of its own."""

    def __init__(self) -> None:
        self._outcome = CopyOutcome.LATE
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, outcome: CopyOutcome) -> None:
        """Set the outcome, and end the wait; a second call does nothing."""
        if self._given.locked():
            self._outcome = outcome
            try:
                self._given.release()
            except RuntimeError:
                # Given twice at once.
                return

    def take(self, timeout_s: float) -> CopyOutcome:
        """Return the outcome once it is given; `LATE` after the time-out."""
        self._given.acquire(timeout=timeout_s)
        return self._outcome
