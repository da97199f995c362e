"""The queue entries that a batch of records calls for, in runs of consecutive ordinals."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.batch import DispatchBatch
from penstock.geometry import QUEUE_ENTRY_SIZE
from penstock.names import QUEUE_MAX, topic_of
from penstock.record import PREPARED, ROLLBACK
from penstock_index.queue_files import ENTRY

_LANES = QUEUE_MAX + 1
# The byte address of an entry must stay a positive 64-bit number.
_ORDINAL_MAX = (1 << 62) // QUEUE_ENTRY_SIZE


class Run(NamedTuple):
    """Consecutive entries of one queue.

    `topic` is None for records that can have no entry: a name that cannot be a folder, or a queue
    number or offset out of bounds, as only a hostile log has them.
    """

    topic: str | None
    queue: int
    ordinal: int
    data: bytes
    log_offset: int
    store_times: npt.NDArray[np.int64]


def runs_of(batch: DispatchBatch) -> Iterator[Run]:
    """Return the runs of a batch, queue by queue; prepared and rolled back records have no entry."""
    types = batch.transaction_types
    rows = np.nonzero((types != PREPARED) & (types != ROLLBACK))[0]
    queues, ordinals = batch.queues[rows], batch.queue_offsets[rows]
    sound = (queues >= 0) & (queues <= QUEUE_MAX) & (ordinals >= 0) & (ordinals < _ORDINAL_MAX)
    for row in rows[~sound].tolist():
        offset = int(batch.log_offsets[row])
        yield Run(None, 0, 0, b"", offset, batch.store_times_ms[:0])
    rows = rows[sound]
    if len(rows) == 0:
        return
    lanes = batch.topic_rows[rows] * _LANES + batch.queues[rows]
    order = np.argsort(lanes, kind="stable")
    rows, lanes = rows[order], lanes[order]
    ordinals = batch.queue_offsets[rows]
    entries = np.empty(len(rows), ENTRY)
    entries["log_offset"] = batch.log_offsets[rows]
    entries["size"] = batch.sizes[rows]
    entries["tag_code"] = batch.tag_codes[rows]
    data = entries.tobytes()
    times = batch.store_times_ms[rows]
    topics = [topic_of(raw) for raw in batch.topics]
    breaks = np.nonzero((lanes[1:] != lanes[:-1]) | (ordinals[1:] != ordinals[:-1] + 1))[0] + 1
    bounds = [0, *breaks.tolist(), len(rows)]
    for start, stop in itertools.pairwise(bounds):
        topic_row, queue = divmod(int(lanes[start]), _LANES)
        piece = data[start * QUEUE_ENTRY_SIZE : stop * QUEUE_ENTRY_SIZE]
        first = int(batch.log_offsets[rows[start]])
        yield Run(topics[topic_row], queue, int(ordinals[start]), piece, first, times[start:stop])
