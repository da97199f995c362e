"""The tail follower: passes new records of the log to the dispatchers, in log order.

It starts at the least progress of any dispatcher, ends at the visible offset, and passes each batch to every
dispatcher that has not processed it. If a dispatcher raises, the error is reported and it is retried later from its
own progress; the log and the other dispatchers continue without it.

Safe from any thread: only one round runs at a time.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher, KeyIndex, QueueIndex
from penstock.contracts.dispatcher import DispatchBatch, Finding
from penstock.durability.log_flusher import LogFlusher
from penstock.errors import DispatcherFailedError, PluginError
from penstock.escape import get_logger
from penstock.format.columns import RecordColumns
from penstock.log.commit_log import CommitLog
from penstock.log.resync import SHORT_BYTES, read_short
from penstock.log.scan import is_filler

logger = get_logger(__name__)

# The pause before a failed dispatcher is retried; it doubles after each further failure, up to the maximum.
RETRY_MS = 1000
RETRY_MS_MAX = 60_000


class DispatchFailure:
    """The error of one dispatcher, and when to retry it."""

    def __init__(self, error: Exception, now_ms: int, pause_ms: int) -> None:
        self.error = error
        self.pause_ms = pause_ms
        self.again_at_ms = now_ms + pause_ms


class TailFollower:
    """Feeds the dispatchers of one store."""

    def __init__(
        self,
        log: CommitLog,
        flusher: LogFlusher,
        dispatchers: Sequence[Dispatcher],
        now_ms: Callable[[], int],
    ) -> None:
        self._log, self._flusher = log, flusher
        self._dispatchers = tuple(dispatchers)
        # The log offset from which appended bytes are lost.
        self._lost_at: int | None = None
        # Records before this log offset were appended by an earlier session.
        self._session_start = log.end_offset
        self._now_ms = now_ms
        self._round = threading.Lock()
        self.troubles: dict[str, DispatchFailure] = {}
        self._pauses: dict[str, int] = {}
        # Store time of the newest record that every dispatcher has.
        self.dispatched_time_ms = log.newest_time_ms

    @property
    def progress(self) -> int:
        """The log offset that every dispatcher has reached."""
        # Asked several times a round: a generator would take as long as dispatching a record.
        least = self._dispatchers[0].progress
        for each in self._dispatchers:
            progress = each.progress
            if progress < least:  # noqa: PLR1730 - a call of `min` costs more
                least = progress
        return least

    def catch_up(self, dispatcher: Dispatcher | None = None) -> None:
        """Dispatch all visible records; returns at once if there is nothing new.

        With a `dispatcher`, returns at once if that dispatcher has processed all visible records.
        """
        visible = self._flusher.visible_offset
        if self._lost_at is not None:
            visible = min(visible, self._lost_at)
        if (dispatcher.progress if dispatcher else self.progress) >= visible:
            return
        with self._round:
            self._dispatch_to(visible)
            lost_at = self._lost_at
        if lost_at is not None:
            # Not under the lock: plugins are notified, and may read.
            self._flusher.lost(lost_at)

    def finish(self) -> None:
        """Dispatch all visible records before the store closes; a failed dispatcher is retried now, not later."""
        with self._round:
            for trouble in self.troubles.values():
                trouble.again_at_ms = self._now_ms()
        self.catch_up()

    def _dispatch_to(self, visible: int) -> None:
        """Pass the records before `visible` to the dispatchers that are ready; stops at bytes that were lost."""
        ready: Sequence[Dispatcher] = self._dispatchers
        if self.troubles:
            ready = [d for d in ready if self._is_ready(d)]
        start = min([d.progress for d in ready], default=visible)
        if start < self._session_start and start < (first := self._log.log.min_offset):
            # Retention deleted what follows its progress in an opening that left the dispatcher out.
            none = RecordColumns.parse(b"", (), 0)
            self._dispatch_batch(ready, DispatchBatch(none, start, first))
            start = first
        if 0 < visible - start <= SHORT_BYTES:
            # One batch, most often of one record: all of the other way would take twice as long.
            log = self._log.log
            with log.lease(start) as segment:
                short = read_short(log, segment, start, visible, check_crc=self._log.checks_crc)
                if short is not None:
                    self._dispatch_batch(ready, short)
                    return
        for batch in self._log.batches(start, visible):
            self._lost_at = self._find_lost(batch)
            if self._lost_at is not None:
                for good in self._log.batches(batch.start_offset, self._lost_at):
                    self._dispatch_batch(ready, good)
                return
            self._dispatch_batch(ready, batch)

    def _dispatch_batch(self, ready: Sequence[Dispatcher], batch: DispatchBatch) -> None:
        for each in ready:
            if each.name not in self.troubles and each.progress < batch.end_offset:
                self._dispatch_one(each, batch)
        if len(batch):
            self.dispatched_time_ms = batch.columns.last_time_ms

    def require(self, dispatcher: Dispatcher) -> None:
        """Like `catch_up` with a dispatcher; raises `DispatcherFailedError` if visible records remain."""
        visible = self._flusher.visible_offset
        if dispatcher.progress >= visible:
            return
        self.catch_up(dispatcher)
        reached = dispatcher.progress
        if reached < visible:
            trouble = self.troubles.get(dispatcher.name)
            reason = (
                repr(trouble.error)
                if trouble
                else "records appended there are missing from the log"
            )
            raise DispatcherFailedError(dispatcher.name, reason, reached, visible)

    def _find_lost(self, batch: DispatchBatch) -> int | None:
        """Return the log offset where a batch's bytes stop being records since the segment writer lost them, or None.

        Records from there on must not be dispatched or skipped: skipped records would be missing without an error,
        and their queue offsets would be assigned again. Corruption from before this session is skipped, since
        recovery has already handled it.
        """
        end = batch.columns.end_offset if len(batch) else batch.start_offset
        if end == batch.end_offset or end < self._session_start:
            return None
        segment = self._log.log.find(end)
        return None if segment is not None and is_filler(self._log.log, segment, end) else end

    def failing(self, root: Path) -> list[Finding]:
        """Return a finding for each dispatcher of the store at `root` that is failing."""
        troubles = dict(self.troubles)
        return [
            Finding(
                each.name, root, -1, each.progress,
                f"dispatcher {each.name} fails ({troubles[each.name].error!r}) and has no records from log offset "
                f"{each.progress} on; its files are compared only up to there",
                "check the disk and the dispatcher; it is retried automatically, and no data is lost",
            )
            for each in self._dispatchers if each.name in troubles
        ]  # fmt: skip

    def _is_ready(self, dispatcher: Dispatcher) -> bool:
        trouble = self.troubles.get(dispatcher.name)
        if trouble is None:
            return True
        if self._now_ms() < trouble.again_at_ms:
            return False
        del self.troubles[dispatcher.name]
        self._pauses[dispatcher.name] = min(trouble.pause_ms * 2, RETRY_MS_MAX)
        return True

    def _dispatch_one(self, dispatcher: Dispatcher, batch: DispatchBatch) -> None:
        """Pass a batch to one dispatcher; an exception is logged and scheduled for a retry."""
        try:
            dispatcher.dispatch(batch)
            _check_advanced(dispatcher, batch)
        except Exception as error:
            pause = self._pauses.get(dispatcher.name, RETRY_MS)
            self.troubles[dispatcher.name] = DispatchFailure(error, self._now_ms(), pause)
            logger.exception(
                "dispatcher %r failed at log offset %d; its progress stays at %d, and it is retried in %d ms",
                dispatcher.name,
                batch.start_offset,
                dispatcher.progress,
                pause,
            )
        else:
            self._pauses.pop(dispatcher.name, None)


def _check_advanced(dispatcher: Dispatcher, batch: DispatchBatch) -> None:
    if dispatcher.progress < batch.end_offset:
        raise PluginError(
            f"dispatcher {dispatcher.name} reports progress {dispatcher.progress} after a batch that ends at log "
            f"offset {batch.end_offset}; the log is not affected; fix or replace that plugin (see penstock plugins)"
        )


def pick_indexes(dispatchers: Sequence[Dispatcher]) -> tuple[QueueIndex, KeyIndex | None]:
    """Return the queue index, and the first key index if there is one."""
    queue_index = next(d for d in dispatchers if isinstance(d, QueueIndex))
    key_index = next((d for d in dispatchers if isinstance(d, KeyIndex)), None)
    return queue_index, key_index
