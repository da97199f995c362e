"""Decides which records of the log belong to the present generation of their queue, and which lack their entry.

Within one generation, queue offsets are consecutive. A broker that deletes a topic removes its queues and leaves the
records in the log. A topic that is created again begins at 0, so the log then holds two generations of one queue. The
rules, in order of precedence, after the records of topics that Penstock removed are left out (`History.removed`):

    1. Surviving entries: a record stored before the first one is of an earlier generation, unless the queue lacks its
       offset. An entry survives as long as it leads to a record of its queue.
    2. The broker's list of topics (`contracts.History`): a record of a topic that is not listed is of a deleted topic.
       It is kept nevertheless if this record, or an earlier one of the topic, has an entry or was written by Penstock
       (see `Endings`).
    3. The other queues of the topic, since a broker deletes all at once. If one of them was created again, earlier
       records of queues without entries are of an earlier generation as well (see `Endings`).
    4. The restart at 0 in the log: a record with offset 0 after all entries begins a new generation.

A repeated offset that does not begin at 0 is dropped, as RocketMQ drops it: its offsets are taken.
"""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.contracts import History, LogView, Trust
from penstock.errors import OffsetError
from penstock.format.arrays import Bools, Int64s, Structs, np
from penstock.format.record import BORN_IPV6, MAGIC_V1, MAGIC_V2, STORE_IPV6
from penstock_index.queue_catalog import Key
from penstock_index.queue_files import ENTRY, PRE_BLANK_SIZE, Entries, effective
from penstock_index.queue_state import NOWHERE, Queue, Run, runs_of

# Entries read at once: little is read twice where a segment ends, and memory is reused.
_CHECK_ENTRIES = 1 << 14
# Entries read at once when the end of a queue is in doubt.
_TAIL_ENTRIES = 1024
# Maximum number of gaps between entries that are checked one by one.
_GAPS_MAX = 64
# Size, magic, and the log offset stored at byte 28 of a record.
_START = struct.Struct(">ii20xq")
# Size, magic, queue, queue offset, stored log offset, sys flag of a record.
_HEAD = struct.Struct(">ii4xi4xqqi")
_INT = struct.Struct(">i")
# Up to the born host, and the fields between hosts and body.
_FIXED, _BEFORE_BODY = 48, 12
# Entries read at once in the search for the first one that leads to its record.
_READ_ENTRIES = 1024
# The next record of a queue is searched up to this distance.
_SEARCH_BYTES_MAX = 64 << 20


def is_backed(log: LogView, key: Key, ordinal: int, log_offset: int) -> bool:
    """Return whether the record at a log offset is the one that belongs at this place of a queue.

    Its checksums are not checked: the question is which queue it belongs to, not whether it can be read.
    """
    topic = key[0].encode()
    try:
        head = bytes(log.read(log_offset, _HEAD.size))
        size, magic, queue, queue_offset, stored, flags = _HEAD.unpack(head)
        is_here = stored == log_offset and magic in (MAGIC_V1, MAGIC_V2)
        if not (is_here and queue == key[1] and queue_offset == ordinal):
            return False
        hosts = (20 if flags & BORN_IPV6 else 8) + (20 if flags & STORE_IPV6 else 8)
        at = log_offset + _FIXED + hosts + 8 + _BEFORE_BODY
        (body_size,) = _INT.unpack(bytes(log.read(at, _INT.size)))
        width = 2 if magic == MAGIC_V2 else 1
        at += _INT.size + body_size
        if body_size < 0 or at + width + len(topic) > log_offset + size:
            return False
        found = bytes(log.read(at, width + len(topic)))
    except OffsetError:
        return False
    return found == len(topic).to_bytes(width, "big") + topic


class _Generation(NamedTuple):
    """First and last log offset of one generation: records of one queue with consecutive queue offsets."""

    first: int
    last: int


class Endings:
    """Collects the records of the whole log, in log order, then decides once for all queues of a topic.

    A broker deletes all queues of a topic at once. If a queue has records from before the first entry of its present
    generation, the topic was deleted before that entry. Records before that entry in the topic's queues without entries
    are then of an ended generation as well. A generation that continues after it has not ended: no deletion was
    in between.

    A topic that the broker does not list is deleted, except for records that Penstock wrote or may have written: these
    get entries again. All queues of the topic then keep the records after the start of that generation, whichever
    program wrote them. The same applies after an entry that survives, and after the first record of a generation that
    continues after such a place. Not thread-safe.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._again: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._decided: dict[str, int] = {}
        self._generations: dict[str, dict[int, list[_Generation]]] = {}

    def take(
        self, key: tuple[str, int], ordinal: int, offsets: Int64s, first: tuple[int, int] | None
    ) -> None:
        """Add the log offsets of records of a queue, whose queue offsets are consecutive from `ordinal` on.

        `first` is the queue offset and the log offset at which its present generation begins; None without entries.
        """
        topic, queue = key
        if first is not None:
            self.keep(topic, first[1])
            if first[0] == 0 and offsets[0] < first[1]:
                self._again[topic] = min(self._again.get(topic, first[1]), first[1])
            return
        generations = self._generations.setdefault(topic, {}).setdefault(queue, [])
        if ordinal == 0 or not generations:
            generations.append(_Generation(int(offsets[0]), int(offsets[-1])))
        else:
            generations[-1] = generations[-1]._replace(last=int(offsets[-1]))
        if self._history.is_unlisted(topic) and self._history.are_ours(offsets).any():
            self.keep(topic, generations[-1].first)

    def keep(self, topic: str, log_offset: int) -> None:
        """Note that the record there has its entry, or gets one even if the topic was deleted."""
        self._kept[topic] = min(self._kept.get(topic, NOWHERE), log_offset)

    def need_no_entry(self, key: tuple[str, int], offsets: Int64s) -> Bools:
        """Return which records of a queue without entries need no entry; call it after all records were added."""
        gone: Bools = offsets < self._ended_before(key)
        if self._history.is_unlisted(key[0]):
            gone |= offsets < self._kept_from(key[0])
        if gone.any():
            gone &= ~self._history.are_ours(offsets)
        return gone

    def _ended_before(self, key: tuple[str, int]) -> int:
        """Return the log offset before which the records of a queue without entries are of ended generations."""
        end = self._again.get(key[0], 0)
        generations = self._generations.get(key[0], {}).get(key[1], ())
        return min((g.first for g in generations if g.first < end <= g.last), default=end)

    def _kept_from(self, topic: str) -> int:
        """Return the log offset from which the records of an unlisted topic are kept."""
        if topic not in self._decided:
            kept = self._kept.get(topic, NOWHERE)
            generations = itertools.chain.from_iterable(self._generations.get(topic, {}).values())
            for generation in sorted(generations, key=lambda each: each.last, reverse=True):
                kept = min(kept, generation.first) if generation.last >= kept else kept
            self._decided[topic] = kept
        return self._decided[topic]


class First(NamedTuple):
    """The first surviving entry of a queue's present generation."""

    ordinal: int
    log_offset: int


class Verdict(NamedTuple):
    """The decision on the records of a run.

    Attributes:
        keep: the rows that belong to the queue.
        known: those among them whose entry exists already.
        cut: where the queue must be cut first; None for no cut, 0 if another generation begins.
    """

    keep: Bools
    known: Bools
    cut: int | None = None


class Generations:
    """Judges the records of all queues of one opening. Not thread-safe; the dispatcher's lock guards it.

    Args:
        trust: what is known at the opening.
        queues: the queues that exist at the opening, none opened for this; more may be added later.
    """

    def __init__(self, trust: Trust, queues: Mapping[Key, Queue]) -> None:
        self._log, self._history = trust.log, trust.history
        self._survivors = trust.survivors
        # Queues created later are not looked up: their numbers are not in `_numbers`.
        self._queues = queues
        if trust.survivors is None:
            keys: Iterable[Key] = queues
        else:
            keys = trust.survivors.queues()
        self._numbers: dict[str, list[int]] = {}
        for topic, number in keys:
            self._numbers.setdefault(topic, []).append(number)
        self._firsts: dict[Key, First | None] = {}
        self._endings: Endings | None = None

    def judge(self, key: Key, queue: Queue | None, run: Run) -> Verdict:
        """Return which records of a run belong to the present queue; `queue` is None if it has no folder."""
        entries = run.entries
        offsets = entries["log_offset"].astype(np.int64)
        keep, known = np.ones(len(offsets), np.bool_), np.zeros(len(offsets), np.bool_)
        first, start = self.first(key), 0
        if first is None:
            keep = ~self._need_no_entry(key, offsets)
            if not keep.all():
                return Verdict(keep, known)
        else:
            start = int(np.searchsorted(offsets, first.log_offset))
            ordinals = run.ordinal + np.arange(start)
            keep[:start] = ordinals < first.ordinal
        if queue is None or start == len(offsets):
            return Verdict(keep, known)
        cut = self._judge_late(key, queue, _Rows(run, entries, offsets, keep, known), start)
        return Verdict(keep, known, cut)

    def first_hole(self, queues: Mapping[Key, Queue], durable: int) -> int | None:
        """Return the first record before `durable` that has no entry although it should; None if there is none.

        The entries of all queues, sorted, must tile the log; the log is read only where they do not. An entry with an
        address that leads to no unit counts as missing. Records of prepared transactions, of deleted topics and of
        earlier generations should have none.
        """
        log = self._log
        cursors = {queue: queue.min_offset for queue in queues.values()}
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
                    hole = self._first_wanted(low, stop, queues)
                    if hole is None:
                        break
                else:
                    hole = self._first_wanted(low, high, queues) if low < high else low
                if hole is not None:
                    # Dispatch must begin with a record; a corrupt entry may point anywhere.
                    hole = hole if hole >= stop or _size_at(log, hole) else start
                    return max(min(hole, stop), log.min_offset)
        return None

    def _first_wanted(self, start: int, stop: int, queues: Mapping[Key, Queue]) -> int | None:
        """Return the log offset of the first record in a range that lacks its entry, None if none does."""
        for batch in self._log.batches(start, stop):
            found: list[int] = []
            for run in runs_of(batch, self._history.removed):
                if run.topic is not None:
                    key = run.topic, run.queue
                    verdict = self.judge(key, queues.get(key), run)
                    lacking = np.flatnonzero(verdict.keep & ~verdict.known)
                    found.extend(int(run.entries["log_offset"][row]) for row in lacking[:1])
            if found:
                return min(found)
        return None

    def begin(self, key: Key, first: First | None) -> None:
        """Note that a queue begins with this entry from now on; None if it was removed."""
        self._firsts[key] = first

    # --- surviving entries

    def first(self, key: Key) -> First | None:
        """Return the first entry of a queue that leads to its record, as of the opening."""
        if key not in self._firsts:
            is_there = key[1] in self._numbers.get(key[0], ())
            self._firsts[key] = self._find_first(key) if is_there else None
        return self._firsts[key]

    def _find_first(self, key: Key) -> First | None:
        for ordinal, log_offset in self._entries(key):
            if is_backed(self._log, key, ordinal, log_offset):
                return First(ordinal, log_offset)
        return None

    def _entries(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield ordinals and log offsets of the present entries."""
        survivors, queue = self._survivors, self._queues.get(key)
        if survivors is None:
            if queue is not None:
                yield from queue.present(queue.min_offset)
            return
        low, high = survivors.min_offset(*key), survivors.max_offset(*key)
        for found in survivors.iter_entries(*key, low, high, _READ_ENTRIES):
            for row in np.flatnonzero(found.sizes > 0).tolist():
                yield found.start + row, int(found.log_offsets[row])

    # --- queues without an entry

    def _need_no_entry(self, key: Key, offsets: Int64s) -> Bools:
        """Return which records of a queue without entries are of a deleted topic, or of an earlier generation."""
        topic, history, log = key[0], self._history, self._log
        if history.are_ours(offsets).all():
            return np.zeros(len(offsets), np.bool_)
        places = ((topic, number) for number in self._numbers.get(topic, ()))
        firsts = [first for place in places if (first := self.first(place))]
        remade = max((first.log_offset for first in firsts if first.ordinal == 0), default=0)
        is_kept = bool(firsts) or history.may_have_ours(log.min_offset, log.end_offset - 1)
        # In all other cases, other records of the log do not matter.
        is_all = offsets[0] < remade or (is_kept and history.is_unlisted(topic))
        endings = self._all_endings() if is_all else Endings(history)
        return endings.need_no_entry(key, offsets)

    def _all_endings(self) -> Endings:
        """Return the ended generations, from all records of the log."""
        if self._endings is None:
            self._endings = Endings(self._history)
            for batch in self._log.batches(self._log.min_offset, self._log.end_offset):
                for run in runs_of(batch, self._history.removed):
                    if run.topic is not None:
                        place = run.topic, run.queue
                        offsets = run.entries["log_offset"].astype(np.int64)
                        self._endings.take(place, run.ordinal, offsets, self.first(place))
        return self._endings

    # --- queues with entries

    def _judge_late(self, key: Key, queue: Queue, rows: "_Rows", start: int) -> int | None:
        """Judge the rows from `start` on, which are not before the queue's first entry; return where to cut."""
        reach = queue.reach()
        ordinals = rows.ordinal + np.arange(len(rows.offsets))
        inside = min(max(queue.max_offset - int(ordinals[start]), 0), len(ordinals) - start)
        stop = start + inside
        if inside:
            cut = self._judge_inside(key, queue, rows, slice(start, stop))
            if cut is not None:
                return cut
        if stop < len(ordinals) and self._has_corrupt_offset(key, queue, rows, stop):
            rows.keep[stop:] = False
            return None
        beyond = rows.offsets[stop:] > reach
        if not beyond.all() and self._has_backed_end(key, queue):
            # Stored before the queue's last record: of an earlier generation, which was longer.
            rows.keep[stop:] = beyond
        return None

    def _judge_inside(self, key: Key, queue: Queue, rows: "_Rows", part: slice) -> int | None:
        """Judge rows whose offset the queue already has; return where to cut."""
        low: int = rows.ordinal + part.start
        offsets = rows.offsets[part]
        have = queue.folder.read_padded(low, low + len(offsets))
        found = effective(have)
        same = found == offsets
        is_whole = have["size"] == rows.entries["size"][part]
        rows.known[part] = same & is_whole & ~queue.without_unit(have)
        fits = self._fitting(key, queue, low, found, offsets)
        reach = queue.reach()
        for row in np.flatnonzero(~same).tolist():
            ordinal, at = low + row, part.start + row
            if found[row] < 0:
                rows.keep[at] = fits(row)
            elif is_backed(self._log, key, ordinal, int(found[row])):
                rows.keep[at] = False
                if (
                    ordinal == 0
                    and offsets[row] > reach
                    and self._begins_generation(key, rows, at, reach)
                ):
                    rows.keep[at:] = True
                    return 0
            elif offsets[row] > reach and not self._has_backed_end(key, queue):
                # From here on, nothing leads to a record of this queue.
                rows.keep[at:] = True
                return ordinal
        return None

    def _fitting(
        self, key: Key, queue: Queue, low: int, found: Int64s, offsets: Int64s
    ) -> Callable[[int], bool]:
        """Return a predicate: does a record fit into a hole, because the next entry's record is stored after it?"""
        places = np.where(found >= 0, np.arange(len(found)), len(found))
        following = np.minimum.accumulate(places[::-1])[::-1]

        def fits(row: int) -> bool:
            at = int(following[row])
            if at < len(found):
                ordinal, log_offset = low + at, int(found[at])
            else:
                ordinal, log_offset = queue.next_entry(low + len(found))
            return log_offset > offsets[row] or not is_backed(self._log, key, ordinal, log_offset)

        return fits

    def _has_backed_end(self, key: Key, queue: Queue) -> bool:
        """Return whether the last entry of a queue leads to its record."""
        reach = queue.reach()
        return reach >= 0 and is_backed(self._log, key, queue.max_offset - 1, reach)

    def _begins_generation(self, key: Key, rows: "_Rows", at: int, reach: int) -> bool:
        """Return whether a record with offset 0 begins another generation, rather than having a corrupt offset."""
        log_offset = int(rows.offsets[at])
        if self._history.is_one_run(reach, log_offset):
            # Penstock never assigns an offset twice while the queue has entries.
            return False
        if at + 1 < len(rows.offsets):
            return True
        end = log_offset + int(rows.entries["size"][at])
        return self._next_ordinal(key, end) in (None, 0, 1)

    def _has_corrupt_offset(self, key: Key, queue: Queue, rows: "_Rows", at: int) -> bool:
        """Return whether a record's offset is past the queue's end, while the next record continues at the end.

        Then its offset is corrupt; not every record has a checksum over it. An entry there would block all that follow.
        """
        end = queue.max_offset
        if rows.ordinal + at <= end or at + 1 < len(rows.offsets):
            return False
        following = int(rows.offsets[at]) + int(rows.entries["size"][at])
        return self._next_ordinal(key, following) in (end, end + 1)

    def _next_ordinal(self, key: Key, log_offset: int) -> int | None:
        """Return the queue offset of the next record of a queue in the log; None if there is none nearby."""
        end = min(self._log.end_offset, log_offset + _SEARCH_BYTES_MAX)
        for batch in self._log.batches(log_offset, end):
            found: list[tuple[int, int]] = [
                (run.log_offset, run.ordinal)
                for run in runs_of(batch, self._history.removed)
                if (run.topic, run.queue) == key
            ]
            if found:
                _, ordinal = min(found)
                return ordinal
        return None


class _Rows(NamedTuple):
    """The rows of a run, and the decisions on them so far."""

    run: Run
    entries: Structs
    offsets: Int64s
    keep: Bools
    known: Bools

    @property
    def ordinal(self) -> int:
        return self.run.ordinal


def select_rows(run: Run, keep: Bools) -> Iterator[Run]:
    """Yield the rows of a run that are kept, as runs."""
    if keep.all():
        yield run
        return
    for start, stop in true_ranges(keep):
        yield run.part(start, stop)


def true_ranges(which: Bools) -> list[tuple[int, int]]:
    """Return the ranges of rows that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], which, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


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
        head = bytes(log.read(log_offset, _START.size))
    except OffsetError:
        return 0
    size, magic, stored = _START.unpack(head)
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
            parts.append(entries[:count][~queue.without_unit(entries[:count])])
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
