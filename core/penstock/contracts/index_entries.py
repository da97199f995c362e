"""Derives index entries from a batch, and finds them again: functions of the kernel on plain buffers, for any plugin.

The built-in dispatchers use only these functions. Columns may be numpy arrays of 32-bit or 64-bit integers of any
stride. Files are passed as memory: a map, or bytes that were read. Numbers in them are checked against that memory, so
a hostile file causes wrong answers at worst.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock._kernel import entry_columns as _entry_columns
from penstock._kernel import index_file_add, index_file_find, index_file_links, key_hash
from penstock._kernel import queue_entries as _queue_entries
from penstock._kernel import row_entries as _row_entries
from penstock.contracts import QUEUE_ENTRY_SIZE, QueueEntries
from penstock.contracts.base import Geometry
from penstock.contracts.dispatcher import SCHEDULE_TOPIC, DispatchBatch
from penstock.format.arrays import Int64s, np
from penstock.format.columns import Buffer
from penstock.format.names import QUEUE_MAX

__all__ = [
    "EntryRun",
    "EntryRuns",
    "entry_runs",
    "find_in_index_file",
    "index_file_add",
    "index_file_links",
    "key_hash",
    "queue_entries",
    "split_entries",
]

# Later than every store time; the kernel takes only times between -2^62 and 2^62.
_TIME_MAX = 1 << 62
_RUN_NUMBERS = 5


class EntryRuns(NamedTuple):
    """The queue entries of a batch, grouped by queue.

    Attributes:
        entries: 20 bytes each, in log order within a queue.
        store_times_ms: the store time of each entry's record.
        runs: one row for each run of consecutive queue offsets: index of its topic, queue, first queue offset,
            index of its first entry, log offset of that entry's record.
        refused: rows of the batch whose queue or queue offset is out of bounds.
    """

    entries: bytes
    store_times_ms: Int64s
    runs: Int64s
    refused: Int64s


def queue_entries(
    batch: DispatchBatch, *, queue_max: int = QUEUE_MAX, queue_offset_max: int
) -> EntryRuns:
    """Return the queue entries of a batch's records; prepared and rolled back records have none.

    Args:
        batch: the records.
        queue_max: the largest valid queue number.
        queue_offset_max: the smallest queue offset that is too large.
    """
    entries, times, runs, refused = _queue_entries(
        batch.log_offsets, batch.sizes, batch.queues, batch.queue_offsets, batch.transaction_types,
        batch.tag_codes, batch.topic_rows, batch.store_times_ms, len(batch.topics), queue_max, queue_offset_max,
    )  # fmt: skip
    return EntryRuns(
        entries,
        np.frombuffer(times, np.int64),
        np.frombuffer(runs, np.int64).reshape(-1, _RUN_NUMBERS),
        np.frombuffer(refused, np.int64),
    )


# Queue entries of consecutive queue offsets: the index of their topic in the batch's `topics`, their queue, the first
# one's queue offset, the log offset of its record, the entries of 20 bytes, and the store time of each entry's record,
# native i64.
EntryRun = tuple[int, int, int, int, bytes, bytes]


def entry_runs(
    batch: DispatchBatch, *, queue_max: int = QUEUE_MAX, queue_offset_max: int
) -> tuple[list[EntryRun], list[int]]:
    """Return the queue entries of a batch's records as `queue_entries` does, divided into runs; and the refused rows.

    For the few records of a follower's usual batch this takes a fraction of the time, since no column is made.

    Args:
        batch: the records.
        queue_max: the largest valid queue number.
        queue_offset_max: the smallest queue offset that is too large.
    """
    scanned = batch.scanned
    if scanned is not None and SCHEDULE_TOPIC not in scanned.topic_names:
        runs, refused = _row_entries(*scanned.entry_parts(), queue_max, queue_offset_max)
        return runs, np.frombuffer(refused, np.int64).tolist() if refused else []
    # Delivery times take the place of the tag codes, or there are columns only.
    made = queue_entries(batch, queue_max=queue_max, queue_offset_max=queue_offset_max)
    numbers = made.runs.tolist()
    stops = [*made.runs[1:, 3].tolist(), len(made.store_times_ms)]
    return [
        (
            topic, queue, queue_offset, log_offset,
            made.entries[start * QUEUE_ENTRY_SIZE : stop * QUEUE_ENTRY_SIZE],
            made.store_times_ms[start:stop].tobytes(),
        )
        for (topic, queue, queue_offset, start, log_offset), stop in zip(numbers, stops, strict=False)
    ], made.refused.tolist()  # fmt: skip


def split_entries(entries: Buffer) -> tuple[QueueEntries, int]:
    """Return copied columns of queue entries, and the smallest tag code, or 0 if none is negative.

    An entry that points at no record has size 0, and a pre-blank one log offset -1; a remainder of fewer than 20 bytes
    is ignored.
    """
    log_offsets, sizes, tag_codes, least_code = _entry_columns(entries)
    columns = QueueEntries(
        np.frombuffer(log_offsets, np.int64),
        np.frombuffer(sizes, np.int64),
        np.frombuffer(tag_codes, np.int64),
    )
    return columns, least_code


def find_in_index_file(
    memory: Buffer, geometry: Geometry, hashed: int, begin_ms: int, end_ms: int
) -> Iterable[int]:
    """Return log offsets of a key's records in an index file, newest first.

    Hashes collide and an entry's time is rounded, so the result may include records of other keys or times. It includes
    every record of the key that is in the file.

    Args:
        memory: the file, or a part of it from its start.
        geometry: the file's number of slots and entries.
        hashed: the key's hash; see `key_hash`.
        begin_ms: the earliest store time.
        end_ms: the latest store time.
    """
    if begin_ms < -_TIME_MAX or end_ms > _TIME_MAX:
        begin_ms, end_ms = max(begin_ms, -_TIME_MAX), min(end_ms, _TIME_MAX)
    if begin_ms > end_ms:
        return []
    slots, entries = geometry.index_slots, geometry.index_entries
    found, number = index_file_find(memory, slots, entries, hashed, begin_ms, end_ms)
    if number == 0:
        return found

    def following() -> Iterator[int]:
        yield from found
        at = number
        while at:
            more, at = index_file_find(memory, slots, entries, hashed, begin_ms, end_ms, at)
            yield from more

    return following()
