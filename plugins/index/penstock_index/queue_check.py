"""Compares consume queues with the log, entry by entry; tag codes are read through the extension if there is one.

A record's queue offset may hold the entry of another record, or may be outside of the queue. Such a record can belong
to an earlier generation of the queue, or to a deleted topic; this is known only after all records were read. A record
that an entry leads to is of the queue's present generation; when that is known for all records, the others are judged
by the rules of `queue_generations`. Records of an earlier generation are not findings; one log line gives their number.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.contracts import (
    COPYING,
    QUEUE_ENTRY_SIZE,
    Checker,
    DispatchBatch,
    Finding,
    History,
    QueueIndex,
    batch_topics,
    is_light,
)
from penstock.escape import get_logger
from penstock.format.arrays import Bools, Int64s, np
from penstock_index.queue_catalog import Key, QueueNames
from penstock_index.queue_files import are_addresses, is_whole_name
from penstock_index.queue_generations import Endings, true_ranges
from penstock_index.queue_state import SCHEDULE_TOPIC, Run, are_delivery_times, runs_of

logger = get_logger(__name__)

# Number of entries read at once where no record matched.
_READ_ENTRIES = 1 << 14


class Matched(NamedTuple):
    """Entries [start, stop) that lead to their records, with the log offsets of the first and the last."""

    start: int
    stop: int
    first: int
    last: int


class Stray(NamedTuple):
    """Records without an entry of their own.

    Attributes:
        key: topic and queue.
        ordinal: queue offset of the first one.
        log_offsets: log offset of each.
        is_beyond: the queue has no entry there at all.
    """

    key: Key
    ordinal: int
    log_offsets: list[int]
    is_beyond: bool


class Strays:
    """All records of a log that were read so far, in log order. Not thread-safe."""

    def __init__(self) -> None:
        self._matched: dict[Key, list[Matched]] = {}
        self._strays: dict[Key, list[Stray]] = {}

    def match(self, key: Key, ordinal: int, offsets: Int64s, right: Bools) -> None:
        """Add the records whose queue entry is right."""
        for start, stop in true_ranges(right):
            found = Matched(
                ordinal + start, ordinal + stop, int(offsets[start]), int(offsets[stop - 1])
            )
            self._put(key, found)

    def _put(self, key: Key, found: Matched) -> None:
        known = self._matched.setdefault(key, [])
        if known and known[-1].stop == found.start and known[-1].last < found.first:
            known[-1] = known[-1]._replace(stop=found.stop, last=found.last)
        else:
            known.append(found)

    def add(
        self, key: Key, ordinal: int, offsets: Int64s, which: Bools, *, is_beyond: bool
    ) -> None:
        """Add records without an entry of their own."""
        for start, stop in true_ranges(which):
            stray = Stray(key, ordinal + start, offsets[start:stop].tolist(), is_beyond)
            self._strays.setdefault(key, []).append(stray)

    def plain(self) -> object:
        """Return everything as plain values, for `take`."""
        matched = {key: [tuple(one) for one in found] for key, found in self._matched.items()}
        strays = {key: [tuple(one[1:]) for one in found] for key, found in self._strays.items()}
        return matched, strays

    def take(self, other: Any) -> None:
        """Add the records of a later part of the log."""
        for key, found in other[0].items():
            for one in found:
                self._put(key, Matched(*one))
        for key, strays in other[1].items():
            self._strays.setdefault(key, []).extend(Stray(key, *one) for one in strays)

    # --- after all records

    def gaps(self, key: Key, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of queue offsets in [low, high) that no record matched."""
        at = low
        for one in sorted(self._matched.get(key, ())):
            if at < min(one.start, high):
                yield at, min(one.start, high)
            at = max(at, one.stop)
        if at < high:
            yield at, high

    def descents(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield queue offset and log offset of each entry whose record was stored before the previous one's record."""
        newest = -1
        for one in sorted(self._matched.get(key, ())):
            if one.first <= newest:
                yield one.start, one.first
            newest = max(newest, one.last)

    def has(self, key: Key, log_offset: int) -> bool:
        """Return whether the queue's record at a log offset states another place in the queue."""
        return any(log_offset in stray.log_offsets for stray in self._strays.get(key, ()))

    def is_repeat(self, key: Key, ordinal: int, log_offset: int) -> bool:
        """Return whether the record of an entry repeats offset 0, and a flipped bit does not explain it.

        RocketMQ 5.0 to 5.3.2 assigns offsets twice if it was stopped while its queues lagged behind the log; other
        versions do if they were killed after a topic was created again. They add a record of offset 0 at the end of
        the queue.
        """
        strays = [(at, stray.ordinal + row) for stray in self._strays.get(key, ())
                  for row, at in enumerate(stray.log_offsets)]  # fmt: skip
        if (log_offset, 0) not in strays:
            return False
        if ordinal.bit_count() > 1:
            return True
        newest = max((one.last for one in self._matched.get(key, ())), default=-1)
        return log_offset > newest or any(at > log_offset and n == 1 for at, n in strays)

    def missing(self, history: History) -> tuple[list[tuple[Stray, int]], int]:
        """Return the records that lack their entry, each with a count of records, and how many others need none."""
        endings, found, others = self._endings(history), [], 0
        for key, strays in self._strays.items():
            for stray in strays:
                needs = self._needs_entry(stray, endings)
                others += int((~needs).sum())
                for start, stop in true_ranges(needs):
                    size = stop - start if stray.is_beyond else 1
                    for at in range(start, stop, size):
                        part = stray.log_offsets[at : at + size]
                        found.append((Stray(key, stray.ordinal + at, part, stray.is_beyond), size))
        return sorted(found, key=lambda each: each[0].log_offsets[0]), others

    def _needs_entry(self, stray: Stray, endings: Endings) -> Bools:
        offsets = np.array(stray.log_offsets, np.int64)
        ordinals = stray.ordinal + np.arange(len(offsets))
        first = self._first(stray.key)
        if first is None:
            return ~endings.need_no_entry(stray.key, offsets)
        needs = (offsets >= first[1]) | (ordinals < first[0])
        matched = self._matched[stray.key]
        for one in matched:
            needs &= (ordinals < one.start) | (ordinals >= one.stop)
        if stray.is_beyond:
            needs &= offsets > max(one.last for one in matched)
        return needs

    def _first(self, key: Key) -> tuple[int, int] | None:
        """Return queue offset and log offset at which the present generation of a queue begins."""
        found = min(self._matched.get(key, ()), default=None)
        return (found.start, found.first) if found else None

    def _endings(self, history: History) -> Endings:
        endings = Endings(history)
        for topic, number in self._matched:
            if first := self._first((topic, number)):
                endings.keep(topic, first[1])
        for key, strays in self._strays.items():
            for stray in strays:
                offsets = np.array(stray.log_offsets, np.int64)
                endings.take(key, stray.ordinal, offsets, self._first(key))
        return endings


class QueueChecker(Checker):
    """One comparison of all queues with the log. Not thread-safe."""

    def __init__(self, index: QueueIndex, names: QueueNames, history: History) -> None:
        self._index = index
        self._names = names
        self._folder = names.root
        self._history = history
        self._not_judged = batch_topics(index.context.files, index.context.root)
        self._corrupt_ranges: list[tuple[int, int]] = []
        self._strays = Strays()

    is_splittable = True

    def start(self) -> Iterator[Finding]:
        """See `Checker`: names that belong to no queue, which affect no message; and files of a wrong length."""
        yield from self._names.findings()
        size = self._index.context.geometry.queue_file_bytes
        for topic, number in self._names.folders():
            for entry in self._names.of_wrong_length(topic, number, size):
                if is_whole_name(entry.name, size):
                    path = self._folder / topic / str(number) / entry.name
                    text = f"a queue file of {entry.size} bytes, not {size}"
                    yield Finding("queue", path, -1, -1, text, COPYING)

    def damage(self, start: int, stop: int) -> None:
        """See `Checker`: entries whose records are lost in a corrupt range are not findings."""
        self._corrupt_ranges.append((start, stop))

    def seen(self) -> object:
        corrupt, strays = self._corrupt_ranges, self._strays
        self._corrupt_ranges, self._strays = [], Strays()
        return corrupt, strays.plain()

    def take(self, seen: Any) -> None:
        self._corrupt_ranges.extend(seen[0])
        self._strays.take(seen[1])

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        for run in runs_of(batch, self._history.removed):
            if run.topic is None:
                yield Finding(
                    "log", self._folder, -1, run.log_offset,
                    "the record's topic or queue cannot be a folder name; it has no queue entry",
                )  # fmt: skip
                continue
            if run.topic in self._not_judged:
                continue
            yield from self._compare(run, (run.topic, run.queue))

    def _compare(self, run: Run, key: Key) -> Iterator[Finding]:
        expected = run.entries
        count = len(expected)
        found = self._index.entries(*key, run.ordinal, run.ordinal + count)
        have = len(found.sizes)
        offsets = expected["log_offset"].astype(np.int64)
        is_other = (found.log_offsets != offsets[:have]) | (found.sizes <= 0)
        wrong = (found.sizes != expected["size"][:have]) & ~is_other
        # The index returns tag codes; a code that is still an address leads to no unit of the extension.
        lost = are_addresses(found.tag_codes) & ~wrong & ~is_other
        codes = ~lost & ~wrong & ~is_other & (found.tag_codes != expected["tag_code"][:have])
        if run.topic == SCHEDULE_TOPIC:
            codes &= ~are_delivery_times(found.tag_codes, run.store_times[:have])
        for row in np.nonzero(wrong | codes | lost)[0].tolist():
            what = "another tag code" if codes[row] else "another record, or none"
            what = "an address without a unit in the extension" if lost[row] else what
            yield self._finding(key, run.ordinal + row, int(offsets[row]), f"the entry has {what}")
        self._strays.match(key, run.ordinal, offsets[:have], ~is_other)
        self._strays.add(key, run.ordinal, offsets[:have], is_other, is_beyond=False)
        if have < count:
            rest = offsets[have:]
            everywhere = np.ones(len(rest), np.bool_)
            # If a file is missing, its entries are missing too, but later entries may exist.
            is_beyond = run.ordinal + have >= self._index.max_offset(*key)
            self._strays.add(key, run.ordinal + have, rest, everywhere, is_beyond=is_beyond)

    def _finding(self, key: Key, ordinal: int, log_offset: int, text: str) -> Finding:
        path = self._folder / key[0] / str(key[1])
        where = f"queue {key[0]}/{key[1]} offset {ordinal}: {text}"
        return Finding("queue", path, ordinal * QUEUE_ENTRY_SIZE, log_offset, where)

    def finish(self, end: int) -> Iterator[Finding]:
        """See `Checker`. Entries at or after `end` belong to an active writer and are not compared yet."""
        found = list(self._last_findings(end))
        # The queues of a topic that was removed meanwhile are not those of the records read before.
        removed = self._index.context.read_history().removed if found else {}
        for finding in found:
            topic = finding.path.parent.name
            if removed.get(topic) == self._history.removed.get(topic):
                yield finding

    def _last_findings(self, end: int) -> Iterator[Finding]:
        yield from self._without_entry()
        for key in self._index.queues():
            if is_light(key[0]):
                # Its entries are those of records of other topics.
                continue
            for ordinal, log_offset in self._strays.descents(key):
                text = "the entry's record was stored before that of the previous entry: it is of an earlier generation"
                yield self._finding(key, ordinal, log_offset, text)
            yield from self._unmatched(key, end)

    def _without_entry(self) -> Iterator[Finding]:
        """Yield findings for records without their entry, except those of earlier generations."""
        missing, others = self._strays.missing(self._history)
        for stray, count in missing:
            text = "the entry has another record, or none"
            if stray.is_beyond:
                text = f"{count} entries are missing from here on"
            finding = self._finding(stray.key, stray.ordinal, stray.log_offsets[0], text)
            # An absent entry may not have been written yet when its file was copied; a written one never changes.
            there = self._index.entries(*stray.key, stray.ordinal, stray.ordinal + 1)
            is_absent = stray.is_beyond or not (there.sizes.any() or there.log_offsets.any())
            yield finding._replace(what_now=COPYING) if is_absent else finding
        if others:
            logger.info(
                "%s: %d records are of deleted topics, or of earlier generations of their queues; they have no queue "
                "entry, and need none", self._folder, others,
            )  # fmt: skip

    def _unmatched(self, key: Key, end: int) -> Iterator[Finding]:
        """Yield findings for entries that belong to no record."""
        low, high = self._index.min_offset(*key), self._index.max_offset(*key)
        for start, stop in self._strays.gaps(key, low, high):
            for more in self._index.iter_entries(*key, start, stop, _READ_ENTRIES):
                at = more.start
                extra = (more.sizes > 0) & (more.log_offsets < end)
                for begin, close in self._corrupt_ranges:
                    extra &= (more.log_offsets < begin) | (more.log_offsets >= close)
                for row in np.flatnonzero(extra).tolist():
                    log_offset = int(more.log_offsets[row])
                    # Between other entries, an entry may remain of a record that a repair covered.
                    is_wrong = stop == high or self._strays.has(key, log_offset)
                    extra[row] = is_wrong and not self._strays.is_repeat(key, at + row, log_offset)
                count = int(extra.sum())
                if count:
                    first = int(np.argmax(extra))
                    text = f"{count} entries from here on belong to no record"
                    yield self._finding(key, at + first, int(more.log_offsets[first]), text)
