"""Units of the timer log: as they are made, and beside the timer topic. Pure functions on columns.

A unit is true if its record is one of the timer topic below the saved offset: log offset and size are those of a queue
entry. A record after that offset has not been taken in, so its unit, at the end of the log, is from a save that a crash
has ended. A record before the topic's first one was deleted by retention. No program has written any other unit.
"""

from typing import NamedTuple

from penstock.contracts.dispatcher import QueueEntries
from penstock.format.arrays import Bools, Int64s, Structs, np
from penstock_messaging.timers.timer_log import UNIT, UNIT_BYTES

_INT32 = 1 << 31
# A unit of this kind says nothing of its record but that it is taken in; Penstock writes it where it must be last.
CLOSES = 8


class TimerUnit(NamedTuple):
    """A record of the timer topic, and when it is looked at.

    Attributes:
        slot_ms: the second in which it is looked at.
        log_offset: where the record begins.
        size: the record's length in bytes.
        kind: bits of `waiting_timers`: 1 always, 2 if it is rolled then, 4 if it cancels another one.
        enqueue_ms: the second in which it was taken in.
        topic_hash: Java's hash code of the topic to which it goes.
    """

    slot_ms: int
    log_offset: int
    size: int
    kind: int
    enqueue_ms: int
    topic_hash: int


class MatchedUnits(NamedTuple):
    """How units match the entries of the topic.

    Attributes:
        is_true: which units are of a record that is there.
        is_old: which units are of a record that retention has deleted.
        kept: how many units there are up to the last true one; those after it are cut off.
        missing: the numbers of the entries that have no unit.
    """

    is_true: Bools
    is_old: Bools
    kept: int
    missing: Int64s


def match(units: Structs, entries: QueueEntries, next_log_offset: int) -> MatchedUnits:
    """Compare units with the entries of the topic's queue below the saved offset.

    Args:
        units: of the timer log.
        entries: of the queue; an entry of size 0 is missing.
        next_log_offset: where the record of the first entry after them begins, or will begin.
    """
    offsets = units["log_offset"].astype(np.int64)
    known = np.flatnonzero(np.asarray(entries.sizes) > 0)
    # A queue of a damaged store may not be in the order of the log.
    known = known[np.argsort(entries.log_offsets[known], kind="stable")]
    log_offsets = np.asarray(entries.log_offsets)[known]
    at = np.searchsorted(log_offsets, offsets)
    near = np.minimum(at, max(len(known) - 1, 0))
    if len(known):
        is_true = (log_offsets[near] == offsets) & (entries.sizes[known[near]] == units["size"])
        first = int(log_offsets[0])
    else:
        is_true, first = np.zeros(len(units), bool), next_log_offset
    is_old = (offsets >= 0) & (offsets < first)
    # A torn unit at the end may look like one of an old record; and a real one there tells nothing any more.
    believed = np.flatnonzero(is_true)
    kept = int(believed[-1]) + 1 if len(believed) else 0
    has_unit = np.zeros(len(known), bool)
    has_unit[near[is_true & ((units["kind"] & CLOSES) == 0)]] = True
    return MatchedUnits(is_true, is_old, kept, np.sort(known[~has_unit]))


def rows_of(fields: list[TimerUnit] | Int64s) -> Structs:
    """Return units without their chains."""
    columns = np.array(fields, np.int64).reshape(-1, len(TimerUnit._fields))
    slot_ms, log_offset, size, kind, enqueue_ms, topic_hash = columns.T
    rows = np.zeros(len(columns), UNIT.dtype)
    rows["unit_size"] = UNIT_BYTES
    rows["log_offset"], rows["size"], rows["kind"] = log_offset, size, kind
    # A clock that was set back and forth may leave more than the field can say.
    delay_ms = np.clip(slot_ms - enqueue_ms, -_INT32, _INT32 - 1)
    rows["enqueue_ms"], rows["delay_ms"] = slot_ms - delay_ms, delay_ms
    rows["topic_hash"] = topic_hash
    return rows
