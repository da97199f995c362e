"""The chains of units in a timer log: which units wait in which second. Pure functions on columns.

The units of one second form a chain, each naming the one before it; the first names none. A broker reads the last chain
of a second, from its end. Penstock begins another one at a close, for what is left of the second. A unit names only
earlier ones, so no chain has a loop.
"""

from penstock.format.arrays import Bools, Int32s, Int64s, Structs, np
from penstock_messaging.timers.wheel_file import NO_UNIT, SLOT

SECOND_MS = 1000
CANCELS = 4


def slots_ms(units: Structs) -> Int64s:
    """Return the second of each unit, in milliseconds; a delay that cannot be right gives a second long ago."""
    enqueue_ms = units["enqueue_ms"].astype(np.int64)
    limit = 1 << 60
    is_time = (enqueue_ms >= 0) & (enqueue_ms < limit)
    found = np.where(is_time, enqueue_ms, -limit) + units["delay_ms"].astype(np.int64)
    return found // SECOND_MS * SECOND_MS


def members(
    seconds: Int64s, positions: Int64s, previous: Int64s, begin: int
) -> tuple[Int64s, bool]:
    """Return which of some units are in the last chains of their seconds, by second and position.

    Args:
        seconds: of the units.
        positions: of the units.
        previous: what each unit names; all units of these seconds must be there.
        begin: the timer log's begin; a unit that names one before it is the first one that is left.

    Returns:
        Indexes, and whether all chains are right. If a second's last chain is not, all its units are returned.
    """
    order = np.lexsort((positions, seconds))
    sorted_seconds, at = seconds[order], positions[order]
    is_first = firsts(sorted_seconds)
    previous = previous[order]
    is_start = (previous == NO_UNIT) | ((previous >= 0) & (previous < begin))
    before = np.concatenate((np.array([NO_UNIT], np.int64), at[:-1]))
    is_linked = ~is_first & (previous == before)
    # Per second: where its last chain starts; a second without a start is broken from its first unit on.
    group = np.cumsum(is_first) - 1
    numbers = np.arange(len(order))
    start = np.full(int(is_first.sum()), -1)
    np.maximum.at(start, group[is_start], numbers[is_start])
    is_member = numbers >= start[group]
    is_bad = is_member & ~(is_linked | is_start)
    bad = np.zeros(len(start), bool)
    bad[group[is_bad]] = True
    return order[is_member | bad[group]], not bad.any()


def link(seconds: Int64s, positions: Int64s, units: Structs, slots: Structs) -> None:
    """Append units to the chains of their seconds: sets `previous` of each unit, and changes the slots.

    Args:
        seconds: of the units.
        positions: of the units.
        units: the units.
        slots: of the distinct seconds, ascending, as they are before.
    """
    units["previous"] = _linked(seconds, positions, units["kind"], slots)


def slots_of(seconds: Int64s, positions: Int64s, kinds: Int32s) -> Structs:
    """Return the slots of chains that consist of units with these positions and kinds, by second."""
    slots = empty_slots(seconds)
    _linked(seconds, positions, kinds, slots)
    return slots


def _linked(seconds: Int64s, positions: Int64s, kinds: Int32s, slots: Structs) -> Int64s:
    """Change slots to those after units were appended; return what each unit names."""
    order = np.lexsort((positions, seconds))
    found = np.empty(len(order), np.int64)
    if len(order) == 0:
        return found
    at, is_first = positions[order], firsts(seconds[order])
    previous = np.empty(len(order), np.int64)
    previous[1:] = at[:-1]
    previous[is_first] = slots["last"]
    found[order] = previous
    is_new = slots["first"] == NO_UNIT
    slots["first"][is_new] = at[is_first][is_new]
    slots["last"] = at[np.append(is_first[1:], True)]
    weight = np.where((kinds[order] & CANCELS) != 0, -1, 1)
    counts = np.bincount(np.cumsum(is_first) - 1, weight).astype(np.int64)
    slots["count"] = np.clip(slots["count"] + counts, -(1 << 31), (1 << 31) - 1)
    return found


def empty_slots(seconds: Int64s) -> Structs:
    """Return empty slots of the distinct seconds, ascending."""
    ordered = np.sort(seconds)
    ordered = ordered[firsts(ordered)]
    slots = np.zeros(len(ordered), SLOT.dtype)
    slots["second"] = ordered // SECOND_MS
    slots["first"] = slots["last"] = NO_UNIT
    return slots


def firsts(values: Int64s) -> Bools:
    """Return which of sorted values differ from the one before."""
    found = np.ones(len(values), bool)
    found[1:] = values[1:] != values[:-1]
    return found


def lasts(values: Int64s) -> Int64s:
    """Return the indexes, ascending, of the last occurrences of values."""
    order = np.argsort(values, kind="stable")
    is_last = np.ones(len(order), bool)
    is_last[:-1] = firsts(values[order])[1:]
    return np.sort(order[is_last])
