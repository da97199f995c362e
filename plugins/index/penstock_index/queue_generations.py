"""Decides which records of the log belong to the present generation of their queue.

Within one generation, queue offsets are consecutive. A broker that deletes a topic removes its queues and leaves the
records in the log. A topic that is created again begins at 0, so the log then holds two generations of one queue. The
rules, in order of precedence, after the records of topics that Penstock removed are left out (`History.removed`):

    1. Surviving entries: a record stored before the first one is of an earlier generation, unless the queue lacks its
       offset. An entry survives as long as it leads to a record of its queue.
    2. The broker's list of topics (`contracts.History`): a record of a topic that is not listed is of a deleted topic.
       It is kept nevertheless if this record, or an earlier one of the topic, has an entry or was written by Penstock
       (see `queue_endings`).
    3. The other queues of the topic, since a broker deletes all at once. If one of them was created again, earlier
       records of queues without entries are of an earlier generation as well (see `queue_endings`).
    4. The restart at 0 in the log: a record with offset 0 after all entries begins a new generation.

A repeated offset that does not begin at 0 is dropped, as RocketMQ drops it: its offsets are taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.contracts import QUEUE_ENTRY_SIZE, DispatchBatch, Trust
from penstock.format.arrays import Bools, Int64s, Structs, np
from penstock_index.queue_claims import Key, is_backed
from penstock_index.queue_endings import Endings
from penstock_index.queue_files import ENTRY, effective
from penstock_index.queue_holes import without_unit
from penstock_index.queue_runs import Run, runs_of
from penstock_index.queue_state import Queue
from penstock_index.queue_strays import true_ranges

# Entries read at once in the search for the first one that leads to its record.
_READ_ENTRIES = 1024
# The next record of a queue is searched up to this distance.
_SEARCH_BYTES_MAX = 64 << 20


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
        entries = np.frombuffer(run.data, ENTRY.dtype)
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

    def first_wanted(self, batch: DispatchBatch, queues: Mapping[Key, Queue]) -> int | None:
        """Return the log offset of the first record of a batch that lacks its entry, None if none does."""
        found: list[int] = []
        for run in runs_of(batch, self._history.removed):
            if run.topic is not None:
                key = run.topic, run.queue
                verdict = self.judge(key, queues.get(key), run)
                lacking = np.flatnonzero(verdict.keep & ~verdict.known)
                offsets = np.frombuffer(run.data, ENTRY.dtype)["log_offset"]
                found.extend(int(offsets[row]) for row in lacking[:1])
        return min(found, default=None)

    def begin(self, key: Key, first: First | None) -> None:
        """Note that a queue begins with this entry from now on."""
        self._firsts[key] = first

    def forget(self, key: Key) -> None:
        """Note that a queue was removed."""
        self._firsts[key] = None

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
                        offsets = np.frombuffer(run.data, ENTRY.dtype)["log_offset"].astype(
                            np.int64
                        )
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
        if not beyond.all() and self._is_backed_at(key, queue, queue.max_offset - 1, reach):
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
        rows.known[part] = same & is_whole & ~without_unit(queue, have)
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
            elif offsets[row] > reach and not self._is_backed_at(
                key, queue, queue.max_offset - 1, reach
            ):
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

    def _is_backed_at(self, key: Key, queue: Queue, ordinal: int, log_offset: int) -> bool:
        return log_offset >= 0 and is_backed(self._log, key, ordinal, log_offset)

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
    offsets = np.frombuffer(run.data, ENTRY.dtype)["log_offset"]
    for start, stop in true_ranges(keep):
        yield run._replace(
            ordinal=run.ordinal + start,
            data=run.data[start * QUEUE_ENTRY_SIZE : stop * QUEUE_ENTRY_SIZE],
            log_offset=int(offsets[start]),
            packed_times=run.packed_times[8 * start : 8 * stop],
        )
