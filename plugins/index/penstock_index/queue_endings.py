"""Finds records in queues without entries that are of a deleted topic or of an ended generation of a topic."""

import itertools
from typing import NamedTuple

from penstock.contracts import History
from penstock.format.arrays import Bools, Int64s

_NOWHERE = 1 << 62


class _Generation(NamedTuple):
    """First and last log offset of one generation: records of one queue with consecutive queue offsets."""

    first: int
    last: int


class Endings:
    """Collects the records of the whole log, in log order, then decides once for all queues of a topic.

    A broker deletes all queues of a topic at once. If a queue has records from before the first entry of its present
    generation, the topic was deleted before that entry. Records before that entry in the topic's queues without entries
    are then of an ended generation as well. A generation that continues after that entry has not ended: no deletion was
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
        self._kept[topic] = min(self._kept.get(topic, _NOWHERE), log_offset)

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
            kept = self._kept.get(topic, _NOWHERE)
            generations = itertools.chain.from_iterable(self._generations.get(topic, {}).values())
            for generation in sorted(generations, key=lambda each: each.last, reverse=True):
                kept = min(kept, generation.first) if generation.last >= kept else kept
            self._decided[topic] = kept
        return self._decided[topic]
