"""The queues of a store: the state of each, which of its entries count, and the runs of entries that are added to it.

A store that was closed cleanly may have a hundred thousand queues, of which a process uses some; each is opened at its
first use. The names in its folder, or the summary of the clean close, show that a queue exists and which files it has.
Only its files show where its entries begin and end, and these are not opened before the first use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, overload

from penstock.contracts import QUEUE_ENTRY_SIZE, DispatchBatch, entry_runs
from penstock.contracts.dispatcher import SCHEDULE_TOPIC as _SCHEDULE_TOPIC
from penstock.format.arrays import Bools, Int64s, np
from penstock.format.names import topic_of
from penstock_index.queue_catalog import ClosedQueue, Key
from penstock_index.queue_files import (
    ADDRESS_MAX,
    ENTRY,
    Entries,
    QueueExtension,
    QueueFolder,
    effective,
    first_absent,
)

# The byte address of an entry must stay a positive 64-bit number.
_ORDINAL_MAX = (1 << 62) // QUEUE_ENTRY_SIZE
_NONE: Mapping[str, int] = {}
# Number of entries read at once in the search for the last one that counts, or the next one.
_READ_ENTRIES = 256
_TRIM_ENTRIES = 4096
NOWHERE = 1 << 62


SCHEDULE_TOPIC = _SCHEDULE_TOPIC.decode()
# Levels are whole seconds, minutes, hours or days. So no two times of one message differ in a single bit.
_UNIT_MS = 1000
# A longer delay is corruption.
_DELAY_MAX_MS = 366 * 24 * 3_600_000


class Run(NamedTuple):
    """Consecutive entries of one queue.

    `topic` is None for records that cannot have an entry: a name that cannot be a folder, or a queue
    number or offset out of bounds, as only a hostile log has them.
    """

    topic: str | None
    queue: int
    ordinal: int
    data: bytes
    log_offset: int
    # Native i64 each.
    packed_times: bytes

    @property
    def entries(self) -> Entries:
        """The entries, read-only."""
        return np.frombuffer(self.data, ENTRY.dtype)

    @property
    def store_times(self) -> Int64s:
        """The store time of each entry's record."""
        return np.frombuffer(self.packed_times, np.int64)

    def part(self, start: int, stop: int) -> "Run":
        """Return the entries [start, stop) of the run."""
        return self._replace(
            ordinal=self.ordinal + start,
            data=self.data[start * QUEUE_ENTRY_SIZE : stop * QUEUE_ENTRY_SIZE],
            log_offset=int(self.entries["log_offset"][start]),
            packed_times=self.packed_times[8 * start : 8 * stop],
        )


def runs_of(batch: DispatchBatch, removed: Mapping[str, int] = _NONE) -> Iterator[Run]:
    """Yield the runs of a batch, queue by queue; prepared and rolled back records have no entry.

    Nor have records of removed topics: `removed` maps each to the log offset before which its records are left out.
    """
    runs, refused = entry_runs(batch, queue_offset_max=_ORDINAL_MAX)
    for row in refused:
        yield Run(None, 0, 0, b"", int(batch.log_offsets[row]), b"")
    topics = [topic_of(raw) for raw in batch.topics]
    for topic, queue, ordinal, log_offset, data, times in runs:
        run = Run(topics[topic], queue, ordinal, data, log_offset, times)
        before = removed.get(run.topic, 0) if removed and run.topic is not None else 0
        if log_offset >= before:
            yield run
            continue
        offsets = run.entries["log_offset"]
        first = int(np.searchsorted(offsets, before))
        if first < len(offsets):
            yield run.part(first, len(offsets))


class Queue:
    """One queue. Not thread-safe; the dispatcher's lock guards it.

    Attributes:
        folder: the files of entries.
        extension: the files of units that entries may hold the addresses of.
        min_offset: the first entry whose record the log still has.
        max_offset: the ordinal after the last entry.
        reached: log offset of the last entry's record; -1 if there is no entry, None if it was not read yet.
    """

    __slots__ = ("extension", "folder", "max_offset", "min_offset", "reached")

    def __init__(
        self, folder: QueueFolder, extension: QueueExtension, min_offset: int, max_offset: int
    ) -> None:
        self.folder = folder
        self.extension = extension
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.reached: int | None = None

    def without_unit(self, entries: Entries) -> Bools:
        """Return which entries have an address that leads to no unit of the extension."""
        return self.extension.resolve(entries["tag_code"].astype(np.int64))

    def reach(self) -> int:
        """Return the log offset of the record of the last entry; -1 if there is none."""
        if self.reached is None:
            self.reached = self.folder.place(self.max_offset - 1) if self.max_offset else -1
            if self.reached >= 0:
                return self.reached
            for base in reversed(self.folder.bases):
                stop = min(self.folder.stop_of(base), self.max_offset)
                for high in range(stop, base, -_READ_ENTRIES):
                    offsets = effective(
                        self.folder.read_padded(max(high - _READ_ENTRIES, base), high)
                    )
                    found = offsets[offsets >= 0]
                    if len(found):
                        self.reached = int(found[-1])
                        return self.reached
        return self.reached

    def next_entry(self, ordinal: int) -> tuple[int, int]:
        """Return ordinal and log offset of the first entry from `ordinal` on; `NOWHERE` as log offset if none."""
        return next(self.present(ordinal), (self.max_offset, NOWHERE))

    def present(self, ordinal: int) -> Iterator[tuple[int, int]]:
        """Yield ordinal and log offset of the entries from `ordinal` on; there may be a wide gap between files."""
        for base in list(self.folder.bases):
            low, high = max(base, ordinal), min(self.folder.stop_of(base), self.max_offset)
            for start in range(low, high, _READ_ENTRIES):
                offsets = effective(
                    self.folder.read_padded(start, min(start + _READ_ENTRIES, high))
                )
                for row in np.flatnonzero(offsets >= 0).tolist():
                    yield start + row, int(offsets[row])

    def is_followed_by(self, run: Run) -> bool:
        """Return whether a run continues at the queue's end and was stored after all records of the queue."""
        return run.ordinal == self.max_offset and 0 <= self.reach() < run.log_offset

    def move_min(self, log_offset: int) -> None:
        """Move the minimum to the first entry of a record at or after `log_offset`."""
        self.min_offset = self.folder.first_from(log_offset, self.min_offset, self.max_offset)

    def trim(self, log_offset: int) -> bool:
        """Move the minimum; remove leading files whose records are all deleted. Returns whether any were removed."""
        folder = self.folder
        self.move_min(log_offset)
        gone = [base for base in folder.bases[:-1] if folder.stop_of(base) <= self.min_offset]
        for base in gone:
            folder.remove(base)
        return bool(gone)

    def trim_extension(self) -> bool:
        """Remove the leading extension files with no unit that an entry has the address of, never the last.

        Returns whether any were removed.
        """
        if len(self.extension.paths()) <= 1:
            return False
        first = ADDRESS_MAX
        for low in range(self.min_offset, self.max_offset, _TRIM_ENTRIES):
            entries = self.folder.read(low, min(low + _TRIM_ENTRIES, self.max_offset))
            codes = entries["tag_code"].astype(np.int64)
            leads = self.extension.units(codes)["size"] > 0
            if leads.any():
                first = int(codes[leads][0])
                break
        return self.extension.trim(first)

    def drop_leftovers(self, log_min: int) -> bool:
        """Remove files before a gap whose records are all deleted: a power cut brought them back after retention.

        The queue would go on after them, with offsets that were given already. Returns whether any were removed.
        """
        folder = self.folder
        bases = list(folder.bases)
        ends = [folder.stop_of(base) for base in bases]
        gap = max((at for at in range(1, len(bases)) if bases[at] != ends[at - 1]), default=0)
        if not gap:
            return False
        before = [place for ordinal, place in self.present(bases[0]) if ordinal < ends[gap - 1]]
        if not 0 <= max(before, default=-1) < log_min:
            return False
        for base in bases[:gap]:
            folder.remove(base)
        self.find_bounds(log_min)
        return True

    def find_bounds(self, log_min: int) -> None:
        """Find out which entries count, from the files.

        The name of the first file is the end of a queue whose entries retention deleted. In a log that begins at 0 it
        has deleted none, so a power cut took them.
        """
        first = self.folder.bases[0] if self.folder.bases else 0
        high = self.folder.scan_end()
        self.max_offset = high if high > first or log_min else 0
        self.min_offset = self.folder.first_from(log_min, first, self.max_offset)

    def confirm(self, known: ClosedQueue, log_min: int) -> bool:
        """Take over the recorded bounds of an unchanged queue; return False if its files contradict them."""
        folder, high = self.folder, known.max_offset
        begin = folder.bases[0] if folder.bases else 0
        if high < begin or not folder.is_absent(high):
            return False
        if known.last != (folder.place(high - 1) if high > begin else -1):
            return False
        is_used_up = known.min_offset == high and known.last < log_min
        if not (is_used_up or self._begins_at(known.min_offset, log_min)):
            return False
        self.min_offset, self.max_offset, self.reached = known[1:]
        return True

    def _begins_at(self, ordinal: int, log_min: int) -> bool:
        """Return whether an entry counts, and the one before it does not."""
        folder = self.folder
        return folder.place(ordinal) >= max(log_min, 0) and (
            ordinal == folder.bases[0] or folder.place(ordinal - 1) < log_min
        )

    def known(self) -> ClosedQueue:
        """Return the bounds that the next opening can take over."""
        bases, low, high = tuple(self.folder.bases), self.min_offset, self.max_offset
        begin, end = (bases[0], self.folder.stop_of(bases[-1])) if bases else (0, 0)
        last = self.reach()
        # After a cut a queue may end before its first file; in a corrupt queue no entry may lead to a record.
        is_plain = begin <= low <= high <= end and (last >= 0 or low == high)
        return ClosedQueue(bases, low, high, last) if is_plain else ClosedQueue(bases)

    def reload(self, log_min: int) -> None:
        """Read the bounds again: another process has changed the files."""
        for _ in self.folder.scan(cut_too=True):
            pass
        self.find_bounds(log_min)

    def add_appended(self, log_min: int) -> bool:
        """Add entries written after the end; return False if more has changed, and a full reload is needed.

        A follower is woken for a few entries at a time; listing the folder each time would cost multiple times as much.
        """
        low, high, folder = self.min_offset, self.max_offset, self.folder
        # Files are removed from either end.
        if high <= low or not (folder.is_current(high - 1) and folder.is_current(low)):
            return False
        stop = min(high + _READ_ENTRIES, folder.stop_of(folder.file_base(high - 1)))
        absent = first_absent(folder.read_bytes(high - 1, stop))
        # Either the last entry was removed; or all are present, and there may be more.
        if absent in (None, 0) or folder.place(low) < max(log_min, 0):
            return False
        self.max_offset = high - 1 + (absent or 0)
        return True


def are_delivery_times(codes: Int64s, store_times: Int64s) -> Bools:
    """Return which tag codes can be the delivery time, in Unix milliseconds, of a message stored at that time."""
    delays = codes - store_times
    found: Bools = (delays >= 0) & (delays <= _DELAY_MAX_MS) & (delays % _UNIT_MS == 0)
    return found


def with_present_codes(queue: Queue, run: Run) -> Run:
    """Return a run with the third fields that its entries have in the queue already, if they can be right.

    It is the delivery time of a delayed message. The log does not say what a level of a broker means that is configured
    with other delay levels. So a time that is there, and can be one of a level, is right. Where a broker wrote
    extension files it is the address of a unit (see `queue_files`), which may hold the bitmap of a filter.
    """
    count = min(max(queue.max_offset - run.ordinal, 0), len(run.store_times))
    if count == 0:
        return run
    entries = run.entries.copy()
    there = queue.folder.read(run.ordinal, run.ordinal + count)
    ours = entries[: len(there)]
    codes, times = there["tag_code"].astype(np.int64), run.store_times[: len(there)]
    units = queue.extension.units(codes)
    # A unit that is left over may have the right tag code, and the bitmap of another record.
    is_right = (units["size"] == 0) | (units["store_time_ms"] == times)
    codes = np.where(units["size"] > 0, units["tag_code"], codes).astype(np.int64)
    is_same = codes == ours["tag_code"]
    is_right &= (
        is_same | are_delivery_times(codes, times) if run.topic == SCHEDULE_TOPIC else is_same
    )
    kept = is_right & (there["log_offset"] == ours["log_offset"]) & (there["size"] == ours["size"])
    ours["tag_code"][kept] = there["tag_code"][kept]
    return run._replace(data=entries.tobytes())


class QueueTable(Mapping[Key, Queue]):
    """Queues by topic and number. Not thread-safe; the dispatcher's lock guards it.

    Counting or listing the keys opens no queue; iterating the values opens one after the other.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, Queue | ClosedQueue] = {}
        self._open_queue: Callable[[Key, ClosedQueue], Queue] | None = None

    def add_unopened(
        self,
        look: Callable[[Key, ClosedQueue], Queue],
        known: Iterable[tuple[Key, ClosedQueue]] | Mapping[Key, ClosedQueue],
    ) -> None:
        """Add queues that are not open yet; `look` opens one, from what is known of it."""
        self._open_queue = look
        self._queues.update(known)

    def __setitem__(self, key: Key, queue: Queue) -> None:
        """Add an open queue."""
        self._queues[key] = queue

    def pop(self, key: Key) -> Queue:
        """Take a queue out, opened if needed."""
        found = self[key]
        del self._queues[key]
        return found

    def __getitem__(self, key: Key) -> Queue:
        """Return a queue, opened if needed; it stays unopened if that raises."""
        found = self._queues[key]
        if isinstance(found, ClosedQueue):
            assert self._open_queue is not None
            found = self._queues[key] = self._open_queue(key, found)
        return found

    @overload
    def get(self, key: Key) -> Queue | None: ...

    @overload
    def get(self, key: Key, default: Any) -> Any: ...

    def get(self, key: Key, default: Any = None) -> Any:
        """Return a queue, or the default if there is none."""
        return self[key] if key in self._queues else default

    def __contains__(self, key: object) -> bool:
        """Return whether there is such a queue."""
        return key in self._queues

    def __iter__(self) -> Iterator[Key]:
        """Return an iterator over the keys."""
        return iter(self._queues)

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._queues)

    def unopened(self, key: Key) -> ClosedQueue | None:
        """Return what is known of a queue that is not open yet; None for others."""
        found = self._queues.get(key)
        return found if isinstance(found, ClosedQueue) else None

    def known(self, *, has_moved: bool) -> Iterator[tuple[Key, ClosedQueue]]:
        """Yield what is known of each queue; with `has_moved`, the log begins later than at the last close."""
        for key, found in self._queues.items():
            if isinstance(found, Queue):
                yield key, found.known()
            else:
                yield key, ClosedQueue(found.bases) if has_moved else found

    def opened(self) -> Iterator[Queue]:
        """Return the queues that are open."""
        return (found for found in list(self._queues.values()) if isinstance(found, Queue))

    def opened_or_with_files(self, least: int) -> Iterator[Queue]:
        """Yield the queues that are open, and those with at least this number of files."""
        for key, found in list(self._queues.items()):
            if isinstance(found, Queue) or len(found.bases) >= least:
                yield self[key]
