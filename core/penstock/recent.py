"""What the append path knew of the newest batches: what saves the tail follower reading it out of the log again.

A walk costs a step for each record, and each column a pass over bytes that the processor has forgotten; of a
batch all of it has just been computed. Only what is at hand anyway is kept. The rest, such as keys, is read from the log
as always, and so is everything of single puts, of batches that wait for too long, and after a restart.

One thread adds (the append lock sees to it), one takes (the follower's round does).
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.batch import SCHEDULE_TOPIC, DispatchBatch
from penstock.columns import Buffer, Columns
from penstock.javatext import Int64s
from penstock.lane import Lane

# Fewer cost more one batch after the other than walked together.
_LEAST = 512
# More are not kept for a follower that is behind; it walks then.
_KEPT_MAX = 1 << 18


class Known(NamedTuple):
    """A batch as it was appended. `tag_codes` are None where they are not known; else no record is of a transaction."""

    log_offsets: Int64s
    sizes: Int64s
    queue_offsets: Int64s
    lanes: Sequence[Lane]
    lane_rows: Int64s
    store_time_ms: int
    tag_codes: Int64s | None

    def part(self, low: int, high: int) -> "Known":
        """Return some of its records."""
        offsets, sizes, ordinals, lanes, lane_rows, time_ms, codes = self
        codes = None if codes is None else codes[low:high]
        return Known(
            offsets[low:high], sizes[low:high], ordinals[low:high], lanes, lane_rows[low:high], time_ms,
            codes,
        )  # fmt: skip


class Recent:
    """Batches on their way from the append path to the follower."""

    def __init__(self) -> None:
        self._batches: deque[Known] = deque()
        # Counted by one thread each, so neither count needs a lock.
        self._added = self._taken = 0

    def add(self, batch: Known) -> None:
        """Note a batch; it is passed over when it is short, or too much waits already."""
        count = len(batch.sizes)
        if count >= _LEAST and self._added - self._taken + count <= _KEPT_MAX:
            self._batches.append(batch)
            self._added += count

    def within(self, start: int, stop: int) -> Known | None:
        """Return the records that begin at log offset `start` and end at or before `stop`; None if none are known."""
        batches = self._batches
        while batches:
            offsets, sizes = batches[0][:2]
            if start < int(offsets[0]):
                return None
            if start <= int(offsets[-1]):
                low = int(np.searchsorted(offsets, start))
                high = int(np.searchsorted(offsets, stop))
                high -= high > low and int(offsets[high - 1] + sizes[high - 1]) > stop
                return batches[0].part(low, high) if high > low else None
            self._taken += len(sizes)
            batches.popleft()
        return None


def known_batch(known: Known, window: Buffer, start: int) -> DispatchBatch | None:
    """Return what is known of records as a batch, given the log's bytes from `start` on; None if those are others."""
    offsets, sizes = known.log_offsets, known.sizes
    columns = Columns.parse(window, offsets - start, start, log_offsets=offsets)
    # All of them: a writer may lose some, and whoever takes them in vouches for them.
    if not ((columns.sizes == sizes).all() and (columns.stored_offsets == offsets).all()):
        return None
    names = [lane.topic_bytes for lane in known.lanes]
    topics = {name: number for number, name in enumerate(dict.fromkeys(names))}
    facts = vars(columns)
    facts["sizes"], facts["stored_offsets"] = sizes, offsets
    facts["queue_offsets"] = known.queue_offsets
    facts["queues"] = np.array([lane.queue for lane in known.lanes], np.int64)[known.lane_rows]
    facts["store_times_ms"] = np.full(len(sizes), known.store_time_ms, np.int64)
    rows = np.array([topics[name] for name in names], np.int64)[known.lane_rows]
    facts["topics"] = list(topics), rows
    batch = DispatchBatch(columns, start, int(offsets[-1] + sizes[-1]))
    if known.tag_codes is not None:
        facts["transaction_types"] = np.zeros(len(sizes), np.int64)
        if SCHEDULE_TOPIC not in topics:
            vars(batch)["tag_codes"] = known.tag_codes
    return batch
