"""The part of an atomic batch that a killed writer left: not shown to readers until the next open for writing.

A store that is opened read-only after a crash may have the first records of a batch at the log's end, or queue entries of
some records of a batch. The next open for writing cuts off the former, and adds entries for the latter. Until then readers
see nothing from where the first such batch begins, or from where the log will be cut. Then nothing is hidden any more.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.contracts import (
    Context,
    Dispatcher,
    QueueBounds,
    QueueEntries,
    QueueIndex,
    QueueReader,
)
from penstock.durability.progress import Progress
from penstock.durability.written_ranges import known_ranges
from penstock.errors import FormatVersionError
from penstock.files import Files
from penstock.format.arrays import np
from penstock.format.columns import RecordColumns
from penstock.log.resync import read_batches
from penstock.log.scan import read_mark
from penstock.log.segmented_log import SegmentedLog
from penstock.recovery.inspection import doubtful_tail

# Entries that are read at once, from a queue's end backwards.
_CHUNK = 512


def hide_part_of_batch(
    context: Context, log: SegmentedLog, dispatchers: Sequence[Dispatcher]
) -> None:
    """Set what `log` hides, in a store that is opened read-only; nothing if a process has it open for writing."""
    files, root = context.files, context.root
    lock = root / "lock"
    if files.is_locked(lock) or not files.exists(root / "abort"):
        return
    sequence = _sequence(files, root)
    tail = doubtful_tail(files, root, log, known_ranges(files, root, log))
    if tail is None:
        return
    start, end = tail
    index = next(each for each in dispatchers if isinstance(each, QueueIndex))
    queues = _Queues(index, context.removed_before)
    begin = _first_in_part(log, start, end.offset, queues)
    if begin is None and end.dirty_bytes:
        # Valid records after a torn one may be of its batch.
        begin = end.offset
    if begin is None:
        return

    def still() -> int | None:
        if files.is_locked(lock) or _sequence(files, root) != sequence:
            log.hidden_from = None
            return None
        return begin

    log.hidden_from = still


class _Queues:
    """Which records the queues have. Not thread-safe."""

    def __init__(self, index: QueueReader, removed_before: Callable[[str], int]) -> None:
        self._index = index
        self._removed_before = removed_before

    def have(self, records: RecordColumns) -> set[bool]:
        """Return whether some of these records have their queue entry, and whether some lack it; not of removed topics."""
        names, numbers = records.topics
        columns = (numbers, records.queues, records.queue_offsets, records.log_offsets)
        found = set[bool]()
        for name, queue, ordinal, at in zip(*(each.tolist() for each in columns), strict=True):
            topic = names[name].decode(errors="surrogateescape")
            if at >= self._removed_before(topic):
                place = self._index.place(topic, queue, ordinal)
                found.add(place is not None and place[0] == at)
        return found


def _first_in_part(log: SegmentedLog, start: int, stop: int, queues: _Queues) -> int | None:
    """Return where the first batch in [start, stop) begins of which the queues have a part; None if there is none."""
    begin, has = 0, set[bool]()
    for batch in read_batches(log, start, stop, check_crc=True):
        columns = batch.columns
        marked = np.flatnonzero(columns.prepared_offsets < 0)
        for row, number in zip(
            marked.tolist(), columns.prepared_offsets[marked].tolist(), strict=True
        ):
            mark = read_mark(number)
            if mark is None:
                continue
            if mark.is_first:
                begin, has = int(columns.log_offsets[row]), set()
            has |= queues.have(columns.rows(slice(row, row + 1)))
            if len(has) > 1:
                return begin
    return None


def _sequence(files: Files, root: Path) -> int:
    """Return a number that changes with each write of the progress file."""
    progress = Progress(files, root)
    try:
        progress.read()
    except FormatVersionError:
        return -1
    return progress.sequence


class ShownQueues(QueueReader):
    """A read-only queue index without the entries of hidden records. As thread-safe as the wrapped index."""

    def __init__(self, index: QueueReader, log: SegmentedLog) -> None:
        self._index = index
        self._log = log

    def _begin(self) -> int | None:
        hidden = self._log.hidden_from
        return None if hidden is None else hidden()

    def queues(self) -> list[tuple[str, int]]:
        """See `QueueReader`; also a queue that has only hidden records."""
        return self._index.queues()

    def min_offset(self, topic: str, queue: int) -> int:
        """See `QueueReader`."""
        return self._index.min_offset(topic, queue)

    def max_offset(self, topic: str, queue: int) -> int:
        """See `QueueReader`."""
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
        """See `QueueReader`."""
        return self._index.entries(topic, queue, start, min(stop, self.max_offset(topic, queue)))

    def resume_at(self, topic: str, queue: int, offset: int) -> int:
        """See `QueueReader`."""
        following = self._index.resume_at(topic, queue, offset)
        return min(following, self.max_offset(topic, queue))

    def bounds(self, wanted: Callable[[str], bool], below: int | None) -> Iterator[QueueBounds]:
        """See `QueueReader`."""
        begin = self._begin()
        if begin is not None:
            below = begin if below is None else min(below, begin)
        return self._index.bounds(wanted, below)

    def end_log_offset(self) -> int:
        """See `QueueReader`."""
        begin, end = self._begin(), self._index.end_log_offset()
        return end if begin is None else min(begin, end)

    def close(self) -> None:
        """See `QueueReader`."""
        self._index.close()
