"""The queue entries of a batch of records, in runs of consecutive ordinals."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.contracts import QUEUE_ENTRY_SIZE, DispatchBatch, entry_runs
from penstock.format.arrays import Int64s, np
from penstock.format.names import topic_of
from penstock_index.queue_files import ENTRY

# The byte address of an entry must stay a positive 64-bit number.
_ORDINAL_MAX = (1 << 62) // QUEUE_ENTRY_SIZE
_NONE: Mapping[str, int] = {}


class Run(NamedTuple):
    """Consecutive entries of one queue.

    `topic` is None for records that cannot have an entry: a name that cannot be a folder, or a queue
    number or offset out of bounds, as only a hostile log has them.
    """

    topic: str | None
    queue: int
    ordinal: int
    data: bytes
    log_offset: int
    # Native i64 each.
    packed_times: bytes

    @property
    def store_times(self) -> Int64s:
        """The store time of each entry's record."""
        return np.frombuffer(self.packed_times, np.int64)


def runs_of(batch: DispatchBatch, removed: Mapping[str, int] = _NONE) -> Iterator[Run]:
    """Yield the runs of a batch, queue by queue; prepared and rolled back records have no entry.

    Nor have records of removed topics: `removed` maps each to the log offset before which its records are left out.
    """
    runs, refused = entry_runs(batch, queue_offset_max=_ORDINAL_MAX)
    for row in refused:
        yield Run(None, 0, 0, b"", int(batch.log_offsets[row]), b"")
    topics = [topic_of(raw) for raw in batch.topics]
    for topic, queue, ordinal, log_offset, data, times in runs:
        run = Run(topics[topic], queue, ordinal, data, log_offset, times)
        before = removed.get(run.topic, 0) if removed and run.topic is not None else 0
        if log_offset >= before:
            yield run
        elif (rest := _since(run, before)) is not None:
            yield rest


def _since(run: Run, before: int) -> Run | None:
    """Return the part of a run from a log offset on; None if there is none."""
    offsets = np.frombuffer(run.data, ENTRY.dtype)["log_offset"]
    first = int(np.searchsorted(offsets, before))
    if first == len(offsets):
        return None
    return run._replace(
        ordinal=run.ordinal + first,
        data=run.data[first * QUEUE_ENTRY_SIZE :],
        log_offset=int(offsets[first]),
        packed_times=run.packed_times[8 * first :],
    )
