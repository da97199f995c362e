"""Compares consume queues with the log, entry by entry; tag codes are read through the extension if there is one.

A record's queue offset may hold the entry of another record, or may be outside of the queue. Such a record can belong to an
earlier generation of the queue, or to a deleted topic (see `queue_generations`); this is known only after all records were read.
Records of an earlier generation are not findings; one log line gives their number.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

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
from penstock_index.queue_claims import Key
from penstock_index.queue_delays import SCHEDULE_TOPIC, are_delivery_times
from penstock_index.queue_extension import are_addresses
from penstock_index.queue_files import ENTRY
from penstock_index.queue_names import QueueNames
from penstock_index.queue_runs import Run, runs_of
from penstock_index.queue_strays import Strays

logger = get_logger(__name__)

# Number of entries read at once where no record matched.
_READ_ENTRIES = 1 << 14


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
        """See `Checker`: names that belong to no queue. Such names affect no message."""
        return self._names.findings()

    def damage(self, start: int, stop: int) -> None:
        """See `Checker`: entries whose records are lost in a corrupt range are not findings."""
        self._corrupt_ranges.append((start, stop))

    def seen(self) -> object:
        """See `Checker`."""
        corrupt, strays = self._corrupt_ranges, self._strays
        self._corrupt_ranges, self._strays = [], Strays()
        return corrupt, strays.plain()

    def take(self, seen: Any) -> None:
        """See `Checker`."""
        self._corrupt_ranges.extend(seen[0])
        self._strays.take(seen[1])

    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """See `Checker`."""
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
        expected = np.frombuffer(run.data, ENTRY.dtype)
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
        yield from self._without_entry()
        for key in self._index.queues():
            if is_light(key[0]):
                # Its entries are those of records of other topics.
                continue
            yield from self._out_of_order(key)
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
            is_absent = stray.is_beyond or self._is_absent(stray.key, stray.ordinal)
            yield finding._replace(what_now=COPYING) if is_absent else finding
        if others:
            logger.info(
                "%s: %d records are of deleted topics, or of earlier generations of their queues; they have no queue "
                "entry, and need none", self._folder, others,
            )  # fmt: skip

    def _is_absent(self, key: Key, ordinal: int) -> bool:
        found = self._index.entries(*key, ordinal, ordinal + 1)
        return not found.sizes.any() and not found.log_offsets.any()

    def _out_of_order(self, key: Key) -> Iterator[Finding]:
        for ordinal, log_offset in self._strays.descents(key):
            text = "the entry's record was stored before that of the previous entry: it is of an earlier generation"
            yield self._finding(key, ordinal, log_offset, text)

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
