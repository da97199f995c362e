"""Records that verify found without an entry of their own, and which of them need none.

A record that an entry leads to is of the queue's present generation. When that is known for all records, the others
are judged by the rules of `queue_generations`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.contracts import History
from penstock.format.arrays import Bools, Int64s, np
from penstock_index.queue_claims import Key
from penstock_index.queue_endings import Endings


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
        versions do if they were killed after a topic was created again. They add the record with offset 0 at the end of
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


def true_ranges(which: Bools) -> list[tuple[int, int]]:
    """Return the ranges of rows that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], which, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
