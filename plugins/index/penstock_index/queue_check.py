"""Compares consume queues with the log, entry by entry, tag codes through the extension where there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.batch import DispatchBatch
from penstock.contracts import QueueIndex
from penstock.findings import Checker, Finding
from penstock.foreign import batch_topics, is_light
from penstock.geometry import QUEUE_ENTRY_SIZE
from penstock_index.queue_files import ENTRY
from penstock_index.queue_runs import Run, runs_of
from penstock_index.queue_units import are_addresses


class QueueChecker(Checker):
    """One comparison of all queues with the log. Not thread-safe."""

    def __init__(self, index: QueueIndex, folder: Path) -> None:
        self._index = index
        self._folder = folder
        self._not_judged = batch_topics(index.context.files, index.context.root)
        self._seen: dict[tuple[str, int], int] = {}
        self._damaged: list[tuple[int, int]] = []

    is_splittable = True

    def damage(self, start: int, stop: int) -> None:
        """See `Checker`: entries of records that are there no more are not the queue's fault."""
        self._damaged.append((start, stop))

    def seen(self) -> object:
        """See `Checker`."""
        seen, damaged = self._seen, self._damaged
        self._seen, self._damaged = {}, []
        return seen, damaged

    def take(self, seen: Any) -> None:
        """See `Checker`."""
        for key, stop in seen[0].items():
            self._seen[key] = max(self._seen.get(key, 0), stop)
        self._damaged.extend(seen[1])

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """See `Checker`."""
        for run in runs_of(batch):
            if run.topic is None:
                yield Finding(
                    "log", self._folder, -1, run.log_offset,
                    "the record's topic or queue cannot be a folder; it has no queue entry",
                )  # fmt: skip
                continue
            if run.topic in self._not_judged:
                continue
            yield from self._compare(run, run.topic)
            stop = run.ordinal + len(run.data) // QUEUE_ENTRY_SIZE
            key = run.topic, run.queue
            self._seen[key] = max(self._seen.get(key, 0), stop)

    def _compare(self, run: Run, topic: str) -> Iterator[Finding]:
        expected = np.frombuffer(run.data, ENTRY)
        count = len(expected)
        found = self._index.entries(topic, run.queue, run.ordinal, run.ordinal + count)
        have = len(found.sizes)
        offsets = expected["log_offset"][:have].astype(np.int64)
        wrong = (found.log_offsets != offsets) | (found.sizes != expected["size"][:have])
        # The index gives tag codes; what is an address still leads to no unit of the extension.
        lost = are_addresses(found.tag_codes) & ~wrong
        codes = ~lost & ~wrong & (found.tag_codes != expected["tag_code"][:have])
        for row in np.nonzero(wrong | codes | lost)[0].tolist():
            what = "another tag code" if codes[row] else "another record, or none"
            what = "an address without a unit in the extension" if lost[row] else what
            yield self._finding(
                topic, run.queue, run.ordinal + row, int(offsets[row]), f"the entry has {what}"
            )
        if have < count:
            at = int(expected["log_offset"][have])
            text = f"{count - have} entries are missing from here on"
            yield self._finding(topic, run.queue, run.ordinal + have, at, text)

    def _finding(self, topic: str, queue: int, ordinal: int, log_offset: int, text: str) -> Finding:
        path = self._folder / topic / str(queue)
        where = f"queue {topic}/{queue} offset {ordinal}: {text}"
        return Finding("queue", path, ordinal * QUEUE_ENTRY_SIZE, log_offset, where)

    def finish(self, end: int) -> Iterator[Finding]:
        """See `Checker`. Entries at or behind `end` are a live writer's, still to be compared."""
        for topic, queue in self._index.queues():
            if is_light(topic):
                # Its entries are those of records of other topics.
                continue
            high = self._index.max_offset(topic, queue)
            seen = self._seen.get((topic, queue), self._index.min_offset(topic, queue))
            more = self._index.entries(topic, queue, seen, high)
            if len(more.sizes) == 0 and seen < high:
                seen = self._index.resume_at(topic, queue, seen)
                more = self._index.entries(topic, queue, seen, high)
            extra = (more.sizes > 0) & (more.log_offsets < end)
            for start, stop in self._damaged:
                extra &= (more.log_offsets < start) | (more.log_offsets >= stop)
            count = int(extra.sum())
            if count:
                text = f"{count} entries from here on belong to no record"
                first = int(more.log_offsets[extra][0])
                yield self._finding(topic, queue, seen, first, text)
