"""Finds out whether queues lack entries, reading the log only where they may; and finds entries of corrupt ranges."""

import struct
from collections.abc import Callable, Iterator, Sequence

from penstock.contracts import DispatchBatch, LogView, QueueIndex
from penstock.errors import OffsetError
from penstock.format.arrays import Bools, np
from penstock.format.record import MAGIC_V1, MAGIC_V2
from penstock_index.queue_files import ENTRY, PRE_BLANK_SIZE, Entries, effective
from penstock_index.queue_state import Queue

# Entries read at once: little is read twice where a segment ends, and memory is reused.
_CHECK_ENTRIES = 1 << 14
# Entries read at once when the end of a queue is in doubt.
_TAIL_ENTRIES = 1024
# Size, magic, and the log offset stored at byte 28 of a record.
_HEAD = struct.Struct(">ii20xq")
# Maximum number of gaps between entries that are checked one by one.
_GAPS_MAX = 64

Wanted = Callable[[DispatchBatch], int | None]


def first_hole(queues: list[Queue], log: LogView, durable: int, wanted: Wanted) -> int | None:
    """Return the first record before `durable` that has no entry although it should; None if there is none.

    The entries of all queues, sorted, must tile the log; the log is read only where they do not. An entry with an
    address that leads to no unit counts as missing. `wanted` returns the first record of a batch that should have an
    entry and has none: records of prepared transactions, of deleted topics and of earlier generations should not.
    """
    cursors = {queue: queue.min_offset for queue in queues}
    for start, stop in log.spans():
        stop = min(stop, durable)  # noqa: PLW2901 - the span, cut
        if start >= stop:
            continue
        offsets, sizes = _entries_below(cursors, stop)
        gap_starts = np.concatenate([[start], offsets + sizes])
        gap_stops = np.concatenate([offsets, [stop]])
        for seen, at in enumerate(np.nonzero(gap_starts != gap_stops)[0].tolist()):
            low, high = int(gap_starts[at]), int(gap_stops[at])
            before = int(offsets[at - 1]) if at else start
            if at and _size_at(log, before) != sizes[at - 1]:
                # The entry before the gap is wrong, so it must be rebuilt.
                hole: int | None = before
            elif seen >= _GAPS_MAX:
                # If there are many gaps, one scan over all is faster than one for each.
                hole = _first_wanted(log, low, stop, wanted)
                if hole is None:
                    break
            else:
                hole = _first_wanted(log, low, high, wanted) if low < high else low
            if hole is not None:
                # Dispatch must begin with a record; a corrupt entry may point anywhere.
                hole = hole if hole >= stop or _size_at(log, hole) else start
                return max(min(hole, stop), log.min_offset)
    return None


def valid_end(queue: Queue, log: LogView, durable: int) -> int:
    """Return the ordinal after the last entry that is valid after a crash.

    A cut that was torn by a power cut leaves parts of entries, which point anywhere. An entry is valid if a record
    of its size is at its log offset; or if it is before the durable offset, and after the previous entry's.
    """
    durable = durable if durable > 0 else log.end_offset
    high = queue.max_offset
    while high > queue.min_offset:
        low = max(high - _TAIL_ENTRIES, queue.min_offset)
        entries = queue.folder.read_padded(low, high)
        if entries["size"][-1] == PRE_BLANK_SIZE:
            return high
        offsets = effective(entries)
        rows = np.nonzero(offsets >= 0)[0]
        in_order = np.ones(len(rows), np.bool_)
        in_order[1:] = offsets[rows[1:]] > offsets[rows[:-1]]
        for row, is_later in zip(rows[::-1].tolist(), in_order[::-1].tolist(), strict=True):
            at = int(offsets[row])
            if (is_later and at < durable) or _size_at(log, at) == int(entries["size"][row]):
                return low + int(row) + 1
        high = low
    return high


def _size_at(log: LogView, log_offset: int) -> int:
    """Return the size of the record that begins at a log offset, 0 if none does."""
    try:
        head = bytes(log.read(log_offset, _HEAD.size))
    except OffsetError:
        return 0
    size, magic, stored = _HEAD.unpack(head)
    return int(size) if stored == log_offset and magic in (MAGIC_V1, MAGIC_V2) else 0


def _entries_below(cursors: dict[Queue, int], stop: int) -> "tuple[np.ndarray, np.ndarray]":
    """Return offsets and sizes of all entries from the cursors on that are before `stop`, sorted."""
    parts: list[Entries] = []
    for queue, cursor in cursors.items():
        at = cursor
        while at < queue.max_offset:
            entries = queue.folder.read(at, min(at + _CHECK_ENTRIES, queue.max_offset))
            below = entries["log_offset"].astype(np.int64) < stop
            count = len(entries) if below.all() else int(np.argmin(below))
            parts.append(entries[:count][~without_unit(queue, entries[:count])])
            at += count
            if count < _CHECK_ENTRIES:
                break
        cursors[queue] = at
    entries = np.concatenate(parts) if parts else np.empty(0, ENTRY.dtype)
    sizes = entries["size"].astype(np.int64)
    real = (sizes > 0) & (sizes != PRE_BLANK_SIZE)
    offsets, sizes = entries["log_offset"].astype(np.int64)[real], sizes[real]
    order = np.argsort(offsets, kind="stable")
    return offsets[order], sizes[order]


def without_unit(queue: Queue, entries: Entries) -> Bools:
    """Return which entries have an address that leads to no unit of the extension."""
    return queue.extension.resolve(entries["tag_code"].astype(np.int64))


def _first_wanted(log: LogView, start: int, stop: int, wanted: Wanted) -> int | None:
    for batch in log.batches(start, stop):
        found = wanted(batch)
        if found is not None:
            return found
    return None


def entries_within(
    old: QueueIndex, corrupt_ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield topic, queue, ordinal and bytes of the entries whose whole record is in a corrupt range.

    For a queue without records left in the log, yield its last entry.
    """
    for topic, number in old.queues():
        low, high = old.min_offset(topic, number), old.max_offset(topic, number)
        if low == high > 0:
            last = old.entries(topic, number, high - 1, high)
            for fields in zip(*(column.tolist() for column in last), strict=True):
                if fields[1] > 0:
                    yield topic, number, high - 1, np.array([fields], ENTRY.dtype).tobytes()
            continue
        for found in old.iter_entries(topic, number, low, high, _CHECK_ENTRIES):
            inside = np.zeros(len(found.sizes), np.bool_)
            ends = found.log_offsets + found.sizes
            for begin, stop in corrupt_ranges:
                inside |= (found.log_offsets >= begin) & (ends <= stop) & (found.sizes > 0)
            for row in np.nonzero(inside)[0].tolist():
                fields = (found.log_offsets[row], found.sizes[row], found.tag_codes[row])
                yield topic, number, found.start + row, np.array([fields], ENTRY.dtype).tobytes()
