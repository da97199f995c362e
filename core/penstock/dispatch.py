"""The tail follower: hands new records of the log to the dispatchers, in log order.

It goes from the least progress of any dispatcher up to what readers may see, and gives each batch to
every dispatcher that has not had it. With the feed `follow` it walks the log; with `direct` it takes
what the append path handed over (`handover`), and walks the log only where that is missing. A dispatcher that raises is reported and tried again
later from its own progress; the log and the other dispatchers go on without it.

Safe from any thread: one round runs at a time, whoever asks.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.batch import DispatchBatch
from penstock.commitlog import CommitLog
from penstock.contracts import Dispatcher, KeyIndex, QueueIndex
from penstock.escape import get_logger

logger = get_logger(__name__)

# A dispatcher that failed is tried again after so long, then after twice as long, up to the maximum.
RETRY_MS = 1000
RETRY_MS_MAX = 60_000


class Trouble:
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
        self._now_ms = now_ms
        self._round = threading.Lock()
        self.troubles: dict[str, Trouble] = {}
        self._pauses: dict[str, int] = {}
        # Store time of the newest record that every dispatcher has.
        self.dispatched_time_ms = log.newest_time_ms

    @property
    def progress(self) -> int:
        """The log offset that every dispatcher has reached."""
        return min(dispatcher.progress for dispatcher in self._dispatchers)

    @property
    def is_behind(self) -> bool:
        """Whether there is anything to hand over."""
        return self.progress < self.visible()

    def catch_up(self, dispatcher: Dispatcher | None = None) -> None:
        """Dispatch all that is visible now; returns at once where nothing is new.

        With a `dispatcher`, returns as soon as that one has it.
        """
        visible = self.visible()
        if (dispatcher.progress if dispatcher else self.progress) >= visible:
            return
        with self._round:
            ready = [d for d in self._dispatchers if self._is_ready(d)]
            start = min((d.progress for d in ready), default=visible)
            for batch in self._batches(start, visible):
                for each in ready:
                    if each.name not in self.troubles and each.progress < batch.end_offset:
                        self._give(each, batch)
                if len(batch):
                    self.dispatched_time_ms = int(batch.store_times_ms[-1])

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
                yield batch
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
            self.troubles[dispatcher.name] = Trouble(error, self._now_ms(), pause)
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
