"""The part of an atomic batch that a killed writer left at the log's end: not shown to readers until a writer cuts it off.

A store that is opened read-only after a power cut may have the first records of a batch, and queue entries of them. The next
open for writing cuts them off. From then on the log has other records at these places, so nothing is hidden any more.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.contracts import QueueBounds, QueueEntries, QueueIndex, Trust
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.durability.progress import Progress
from penstock.durability.written_ranges import known_ranges
from penstock.errors import FormatVersionError
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import hidden_from

# Entries that are read at once, from a queue's end backwards.
_CHUNK = 512


def hide_part_of_batch(files: Files, root: Path, log: SegmentedLog) -> None:
    """Set what `log` hides, in a store that is opened read-only; nothing if a process has it open for writing."""
    lock = root / "lock"
    if files.is_locked(lock) or not files.exists(root / "abort"):
        return
    sequence = _sequence(files, root)
    begin = hidden_from(files, root, log, known_ranges(files, root, log))
    if begin is None:
        return

    def still() -> int | None:
        if files.is_locked(lock) or _sequence(files, root) != sequence:
            log.hidden_from = None
            return None
        return begin

    log.hidden_from = still


def _sequence(files: Files, root: Path) -> int:
    """Return a number that changes with each write of the progress file."""
    progress = Progress(files, root)
    try:
        progress.read()
    except FormatVersionError:
        return -1
    return progress.sequence


class ShownQueues(QueueIndex):
    """A read-only queue index without the entries of hidden records. As thread-safe as the wrapped index."""

    name = "shown-queues"

    def __init__(self, index: QueueIndex, log: SegmentedLog) -> None:
        super().__init__(index.options, index.context)
        self._index = index
        self._log = log

    def _begin(self) -> int | None:
        hidden = self._log.hidden_from
        return None if hidden is None else hidden()

    def queues(self) -> list[tuple[str, int]]:
        """See `QueueIndex`; also a queue that has only hidden records."""
        return self._index.queues()

    def min_offset(self, topic: str, queue: int) -> int:
        """See `QueueIndex`."""
        return self._index.min_offset(topic, queue)

    def max_offset(self, topic: str, queue: int) -> int:
        """See `QueueIndex`."""
        begin = self._begin()
        low, high = self._index.ends(topic, queue)
        if begin is None:
            return high
        while high > low:
            start = max(high - _CHUNK, low)
            offsets, sizes, _ = self._index.entries(topic, queue, start, high)
            shown = ((sizes > 0) & (offsets < begin)).nonzero()[0]
            if len(shown):
                return start + int(shown[-1]) + 1
            if not (sizes > 0).any():
                # Nothing is known of these places, and nothing is hidden.
                return high
            high = start
        return high

    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """See `QueueIndex`."""
        return self._index.entries(topic, queue, start, min(stop, self.max_offset(topic, queue)))

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        """See `QueueIndex`."""
        following = self._index.resume_at(topic, queue, offset)
        return min(following, self.max_offset(topic, queue))

    def bounds(self, wanted: Callable[[str], bool], below: int | None) -> Iterator[QueueBounds]:
        """See `QueueIndex`."""
        begin = self._begin()
        if begin is not None:
            below = begin if below is None else min(below, begin)
        return self._index.bounds(wanted, below)

    def end_log_offset(self) -> int:
        """See `QueueIndex`."""
        begin, end = self._begin(), self._index.end_log_offset()
        return end if begin is None else min(begin, end)

    def close(self) -> None:
        """See `Dispatcher`."""
        self._index.close()

    @property
    def progress(self) -> int:
        """See `Dispatcher`."""
        return self._index.progress

    def load(self, trust: Trust) -> list[str]:
        """Never called: the store is open read-only."""
        raise AssertionError("shown queues are read-only")

    def dispatch(self, batch: DispatchBatch) -> None:
        """Never called, like `load`."""
        raise AssertionError("shown queues are read-only")

    def flush(self) -> int:
        """Never called, like `load`."""
        raise AssertionError("shown queues are read-only")

    def truncate(self, log_offset: int) -> None:
        """Never called, like `load`."""
        raise AssertionError("shown queues are read-only")

    def trim(self, log_offset: int) -> None:
        """Never called, like `load`."""
        raise AssertionError("shown queues are read-only")
