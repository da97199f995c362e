"""The tail follower: hands new records of the log to the dispatchers, in log order.

It goes from the least progress of any dispatcher up to what readers may see, and gives each batch to
every dispatcher that has not had it. With the feed `follow` it walks the log; with `direct` it takes
what the append path handed over (`direct_feed`), and walks the log only where that is missing. A dispatcher that raises is reported and tried again
later from its own progress; the log and the other dispatchers go on without it.

Safe from any thread: one round runs at a time, whoever asks.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import Dispatcher, KeyIndex, QueueIndex
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.contracts.findings import Finding
from penstock.errors import DispatcherFailedError
from penstock.escape import get_logger
from penstock.log.commit_log import CommitLog
from penstock.log.read_back import first_unreadable, is_in_log, unread_from

logger = get_logger(__name__)

# A dispatcher that failed is tried again after so long, then after twice as long, up to the maximum.
RETRY_MS = 1000
RETRY_MS_MAX = 60_000


class DispatchFailure:
    """What is wrong with one dispatcher, and when to try it again."""

    def __init__(self, error: Exception, now_ms: int, pause_ms: int) -> None:
        self.error = error
        self.pause_ms = pause_ms
        self.again_at_ms = now_ms + pause_ms


class TailFollower:
    """Feeds the dispatchers of one store."""

    def __init__(
        self,
        log: CommitLog,
        dispatchers: Sequence[Dispatcher],
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._dispatchers = tuple(dispatchers)
        # Up to where readers may see; the engine narrows it under a policy that waits for the disk.
        self.visible: Callable[[], int] = lambda: log.log.committed_offset
        # Whom to tell that the log lost what was appended to it, and where; the engine stops writing then.
        self.on_lost: Callable[[int], object] = lambda _log_offset: None
        self._lost_at: int | None = None
        # What lies before it was appended by an earlier session.
        self._session_start = log.end_offset
        # Whether the batch at hand came from the append path, not from the log.
        self._is_handed_over = False
        self._now_ms = now_ms
        self._round = threading.Lock()
        self.troubles: dict[str, DispatchFailure] = {}
        self._pauses: dict[str, int] = {}
        # Store time of the newest record that every dispatcher has.
        self.dispatched_time_ms = log.newest_time_ms

    @property
    def progress(self) -> int:
        """The log offset that every dispatcher has reached."""
        return min(dispatcher.progress for dispatcher in self._dispatchers)

    def catch_up(self, dispatcher: Dispatcher | None = None) -> None:
        """Dispatch all that is visible now; returns at once where nothing is new.

        With a `dispatcher`, returns as soon as that one has it.
        """
        visible = self.visible()
        if self._lost_at is not None:
            visible = min(visible, self._lost_at)
        if (dispatcher.progress if dispatcher else self.progress) >= visible:
            return
        with self._round:
            self._hand_out(visible)
            lost_at = self._lost_at
        if lost_at is not None:
            # Not under the lock: plugins hear of it, and may read.
            self.on_lost(lost_at)

    def _hand_out(self, visible: int) -> None:
        """Give what lies before `visible` to the dispatchers that are ready, up to bytes that were lost."""
        ready = [d for d in self._dispatchers if self._is_ready(d)]
        start = min((d.progress for d in ready), default=visible)
        for batch in self._batches(start, visible):
            self._lost_at = self._lost_in(batch)
            if self._lost_at is not None:
                for good in self._log.batches(batch.start_offset, self._lost_at):
                    self._give_all(ready, good)
                return
            self._give_all(ready, batch)

    def _give_all(self, ready: Sequence[Dispatcher], batch: DispatchBatch) -> None:
        for each in ready:
            if each.name not in self.troubles and each.progress < batch.end_offset:
                self._give(each, batch)
        if len(batch):
            self.dispatched_time_ms = int(batch.store_times_ms[-1])

    def require(self, dispatcher: Dispatcher) -> None:
        """As `catch_up` with a dispatcher; raises where it has not taken in all that is visible now."""
        visible = self.visible()
        if dispatcher.progress >= visible:
            return
        self.catch_up(dispatcher)
        reached = dispatcher.progress
        if reached < visible:
            trouble = self.troubles.get(dispatcher.name)
            reason = repr(trouble.error) if trouble else "the log lacks what was appended there"
            raise DispatcherFailedError(dispatcher.name, reason, reached, visible)

    def _lost_in(self, batch: DispatchBatch) -> int | None:
        """Return from where on the log has other bytes than a batch, or None.

        Nothing from there on may be taken in: passed over, those records would be missing in silence, and
        their queue offsets given again. Corruption that the opening found is passed over: it has judged it.
        """
        log = self._log.log
        if self._is_handed_over:
            if is_in_log(log, batch):
                return None
            lost_at = first_unreadable(log, batch.start_offset, batch.end_offset)
            return batch.start_offset if lost_at is None else lost_at
        lost_at = None if self._log.has_copies else unread_from(log, batch)
        return None if lost_at is None or lost_at < self._session_start else lost_at

    def failing(self, root: Path) -> list[Finding]:
        """Return a finding for each dispatcher of the store at `root` that fails now."""
        troubles = dict(self.troubles)
        return [
            Finding(
                each.name, root, -1, each.progress,
                f"dispatcher {each.name} fails ({troubles[each.name].error!r}), and has nothing from log offset "
                f"{each.progress} on; its files are compared only up to there",
                "look to the disk; it is tried again by itself, and nothing is lost",
            )
            for each in self._dispatchers if each.name in troubles
        ]  # fmt: skip

    def _batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the records in [start, stop), handed over or read; damage is passed over."""
        hand_over = self._log.hand_over
        if hand_over is None:
            yield from self._log.batches(start, stop)
            return
        at = start
        while at < stop:
            batch = hand_over.take(at, stop)
            if batch is not None:
                at = batch.end_offset
                self._is_handed_over = True
                yield batch
                self._is_handed_over = False
                continue
            known = hand_over.first_from(at)
            limit = stop if known is None or known == at else min(known, stop)
            before = at
            for read in self._log.batches(at, limit):
                at = read.end_offset
                yield read
            if at == before:
                return

    def _is_ready(self, dispatcher: Dispatcher) -> bool:
        trouble = self.troubles.get(dispatcher.name)
        if trouble is None:
            return True
        if self._now_ms() < trouble.again_at_ms:
            return False
        del self.troubles[dispatcher.name]
        self._pauses[dispatcher.name] = min(trouble.pause_ms * 2, RETRY_MS_MAX)
        return True

    def _give(self, dispatcher: Dispatcher, batch: DispatchBatch) -> None:
        try:
            dispatcher.dispatch(batch)
        except Exception as error:
            pause = self._pauses.get(dispatcher.name, RETRY_MS)
            self.troubles[dispatcher.name] = DispatchFailure(error, self._now_ms(), pause)
            logger.exception(
                "dispatcher %r failed at log offset %d; its progress stays at %d, tried again in %d ms",
                dispatcher.name,
                batch.start_offset,
                dispatcher.progress,
                pause,
            )
        else:
            self._pauses.pop(dispatcher.name, None)


def pick_indexes(dispatchers: Sequence[Dispatcher]) -> tuple[QueueIndex, KeyIndex | None]:
    """Return the dispatcher that knows the queues, and the first that finds by key."""
    queue_index = next(d for d in dispatchers if isinstance(d, QueueIndex))
    key_index = next((d for d in dispatchers if isinstance(d, KeyIndex)), None)
    return queue_index, key_index
