"""Compares a queue's entries with its extension: finds the correct addresses and the end of the units."""

from pathlib import Path
from typing import NamedTuple

from penstock.format.arrays import Bools, Int64s, np
from penstock_index.queue_files import ENTRY, Entries
from penstock_index.queue_runs import Run
from penstock_index.queue_state import Queue
from penstock_index.queue_units import UNIT_SIZE, are_addresses, offsets_of

# Number of entries read at once when an address is searched.
_READ_ENTRIES = 4096


class ExistingEntries(NamedTuple):
    """The part of a run that its queue already has.

    Attributes:
        entries: the run's entries; those that exist in the queue have the queue's third field.
        is_right: for each row before the queue's end, whether its entry exists and is correct.
    """

    entries: Entries
    is_right: Bools


def compare_run(queue: Queue, run: Run) -> ExistingEntries:
    """Compare a run with the queue's entries: log offset, size, and tag code, in the entry or in the unit."""
    entries = np.frombuffer(run.data, ENTRY.dtype).copy()
    count = min(max(queue.max_offset - run.ordinal, 0), len(entries))
    is_right = np.zeros(count, np.bool_)
    there = queue.folder.read(run.ordinal, run.ordinal + count)
    have = len(there)
    asked = entries[:have]
    is_same = (there["log_offset"] == asked["log_offset"]) & (there["size"] == asked["size"])
    codes = there["tag_code"].astype(np.int64)
    found, units = queue.extension.units(codes)
    in_unit = (units["tag_code"] == asked["tag_code"]) & (
        units["store_time_ms"] == run.store_times[:have]
    )
    is_right[:have] = is_same & np.where(found, in_unit, codes == asked["tag_code"])
    asked["tag_code"][is_right[:have]] = codes[is_right[:have]]
    return ExistingEntries(entries, is_right)


def give_addresses(queue: Queue, entries: Entries, store_times: Int64s, side_folder: Path) -> int:
    """Write a unit for each of these entries and put its address into it; return the new end of the units.

    The caller sets the extension's end to that after writing the entries.
    """
    extension = queue.extension
    end = extension.end
    if end is None:
        end = end_of_units(queue, found_only=False)
        extension.cut(end)
    codes = entries["tag_code"].astype(np.int64)
    entries["tag_code"], end = extension.put(end, codes, store_times, side_folder)
    return end


def end_of_units(queue: Queue, *, found_only: bool) -> int:
    """Return the offset after the unit of the last address in the queue, or 0 if there is no address.

    With `found_only`, addresses that lead to no unit are skipped, because they will be rebuilt. Otherwise such an
    address counts as a unit of the minimum size, so that no new unit is written at its offset.
    """
    high = queue.max_offset
    while high > queue.min_offset:
        low = max(high - _READ_ENTRIES, queue.min_offset)
        codes = _codes(queue, low, high)
        rows = are_addresses(codes)
        found, units = queue.extension.units(codes)
        if found_only:
            rows &= found
        if rows.any():
            last = int(np.nonzero(rows)[0][-1])
            size = int(units["size"][last]) if found[last] else UNIT_SIZE
            return int(offsets_of(codes[last : last + 1])[0]) + size
        high = low
    return 0


def first_needed(queue: Queue) -> int:
    """Return the offset of the first unit whose address is in an entry; 2**63, after all units, if there is none."""
    low = queue.min_offset
    while low < queue.max_offset:
        high = min(low + _READ_ENTRIES, queue.max_offset)
        codes = _codes(queue, low, high)
        found, _ = queue.extension.units(codes)
        if found.any():
            return int(offsets_of(codes[found])[0])
        low = high
    return 1 << 63


def _codes(queue: Queue, start: int, stop: int) -> Int64s:
    codes: Int64s = queue.folder.read(start, stop)["tag_code"].astype(np.int64)
    return codes
