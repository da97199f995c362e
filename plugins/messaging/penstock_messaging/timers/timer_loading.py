"""Reads what waits from the timer log, and finds out whether the log can be used as it is.

Of each record of the timer topic the last unit says when it is looked at. A record without a unit that by its
properties waits is added. The log can be used as it is if the chain of each second has just the units that wait in it.
"""

from collections.abc import Callable
from typing import Protocol

from penstock import StoredMessage
from penstock.contracts.dispatcher import QueueEntries
from penstock.errors import PenstockError
from penstock.format.arrays import Bools, Int64s, Structs, np
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_check import TimerCheck
from penstock_messaging.timers.timer_log import LogUnits, TimerLog
from penstock_messaging.timers.timer_units import CLOSES, TimerUnit, match, rows_of
from penstock_messaging.timers.unit_chains import (
    SECOND_MS,
    empty_slots,
    lasts,
    members,
    slots_ms,
    slots_of,
)

# If more records than that have no unit, they get one, so that they are not read again at each opening.
_READ_MAX = 1000
# Where the next record begins, if there is none: no unit is of one before it that the queue does not have.
_NO_OFFSET = 1 << 62


# How a record without a unit is taken in, by what `timercheck` says is delivered; None if it waits no more.
UnitOf = Callable[[StoredMessage, int], TimerUnit | None]


class TopicReader(Protocol):
    """The methods of `OpenStore` with which the timer topic is read."""

    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first queue offset."""

    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset of the next message."""

    def queue_entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """Return the entries of a queue."""

    def at(self, log_offset: int) -> StoredMessage:
        """Return the message whose record begins at `log_offset`."""


class Loading:
    """One load: compares the timer log with the timer topic.

    Args:
        store: open.
        check: how far things are.
        found: what the timer log has.
        horizon_ms: no unit can be right from that time on.

    Attributes:
        problems: what was wrong, in sentences.
        is_linked: whether each chain leads to its begin.
        is_whole: whether the log can be used as it is.
        rows: the units that wait, by second.
        positions: of those that are in the log.
        newest: log offset and size of the last record below the saved offset; (-1, 0) if there is none.
        last: the same of the last unit.
    """

    def __init__(
        self, store: TopicReader, check: TimerCheck, found: LogUnits, horizon_ms: int
    ) -> None:
        self._store, self._check, self._found = store, check, found
        self.problems = [found.damage] if found.damage else []
        low, high = store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)
        count = max(check.queue_offset - low, 0)
        entries = store.queue_entries(TIMER_TOPIC, 0, low, min(low + count + 1, high))
        self._entries = QueueEntries(*(column[:count] for column in entries))
        has_next = len(entries.sizes) > count and entries.sizes[count] > 0
        self._matched = match(
            found.units, self._entries, int(entries.log_offsets[count]) if has_next else _NO_OFFSET
        )
        self.newest = self.last = (-1, 0)
        known = np.flatnonzero(self._entries.sizes > 0)
        if len(known):
            at = known[-1]
            self.newest = int(self._entries.log_offsets[at]), int(self._entries.sizes[at])
        kept = self._matched.kept
        if kept:
            unit = found.units[kept - 1]
            self.last = int(unit["log_offset"]), int(unit["size"])
        self._choose(found.units[:kept], found.positions[:kept], horizon_ms)

    def kept_end(self, log: TimerLog) -> int:
        """Return where the timer log ends once that is cut off which a crash has left."""
        kept, positions = self._matched.kept, self._found.positions
        return log.end if kept == len(positions) else int(positions[kept])

    def _choose(self, units: Structs, positions: Int64s, horizon_ms: int) -> None:
        """Find out which units wait, and whether their chains have these, and no others."""
        seconds, kept = slots_ms(units), len(units)
        is_last = np.zeros(kept, bool)
        is_timer = (units["kind"] & CLOSES) == 0
        is_true = np.flatnonzero(self._matched.is_true[:kept] & is_timer)
        is_last[is_true[lasts(units["log_offset"][is_true].astype(np.int64))]] = True
        is_near = seconds < horizon_ms
        now = seconds >= self._check.read_ms
        waiting = np.flatnonzero(is_last & now & is_near)
        waiting = waiting[np.lexsort((positions[waiting], seconds[waiting]))]
        self.rows, self.positions = units[waiting], positions[waiting]
        self._far = units["log_offset"][is_last & ~is_near].astype(np.int64)
        self._check_chains(units, positions, seconds, now, waiting)

    def _check_chains(
        self, units: Structs, positions: Int64s, seconds: Int64s, now: Bools, waiting: Int64s
    ) -> None:
        numbers = np.flatnonzero(now)
        begin = int(positions[0]) if len(positions) else 0
        previous = units["previous"][now].astype(np.int64)
        chosen, is_linked = members(seconds[now], positions[now], previous, begin)
        chosen = numbers[chosen]
        self._chains = seconds[chosen], positions[chosen], units["kind"][chosen]
        if not is_linked:
            self.problems.append("chains of the timer log are broken")
        chosen = chosen[~self._matched.is_old[chosen]]
        aliens = int((~self._matched.is_true[chosen]).sum())
        if aliens:
            self.problems.append(
                f"{aliens} units of the timer log name no record of the timer topic"
            )
        is_ordered = len(units) == 0 or self.last[0] >= int(units["log_offset"].max())
        is_same = np.array_equal(np.sort(chosen), np.sort(waiting))
        self.is_linked = is_linked and not self._found.damage
        self.is_whole = self.is_linked and is_ordered and is_same

    def restore(self, unit_of: UnitOf) -> None:
        """Add the records that have no unit and still wait: of files that are lost.

        A broker writes none for a message that is due when it is taken in.
        """
        missing = self._matched.missing
        if self.problems or len(self._far):
            # Another unit may be false as well: one that says of a message that it is delivered.
            missing = self._not_waiting()
        found = []
        for number in missing.tolist():
            try:
                message = self._store.at(int(self._entries.log_offsets[number]))
            except PenstockError:
                continue
            unit = unit_of(message, self._check.read_ms) if message.topic == TIMER_TOPIC else None
            if unit is not None:
                found.append(unit)
        if found:
            self.problems.append(f"{len(found)} messages that wait are not in the timer log")
            rows = np.concatenate((self.rows, rows_of(found)), dtype=self.rows.dtype)
            self.rows = rows[np.lexsort((rows["log_offset"], slots_ms(rows)))]
        if self.problems:
            self.problems.append("what waits was read from the timer topic instead")
        self.is_whole = self.is_whole and not found and len(missing) <= _READ_MAX

    def _not_waiting(self) -> Int64s:
        """Return the numbers of the entries that do not wait as far as is known."""
        waiting = self.rows["log_offset"].astype(np.int64)
        is_other = ~np.isin(self._entries.log_offsets, waiting)
        return np.flatnonzero(is_other & (self._entries.sizes > 0))

    def slots(self) -> Structs:
        """Return the slots of the chains that a broker would find now; none if it may find no end."""
        if not self.is_linked:
            return empty_slots(np.empty(0, np.int64))
        return slots_of(*self._chains)

    def all_rows(self) -> Structs:
        """Return a unit for each record below the saved offset, in order: what does not wait is in a past second."""
        numbers, over_ms = self._not_waiting(), self._check.read_ms - SECOND_MS
        done = np.zeros((len(numbers), len(TimerUnit._fields)), np.int64)
        done[:] = (over_ms, 0, 0, 1, over_ms, 0)
        done[:, 1], done[:, 2] = self._entries.log_offsets[numbers], self._entries.sizes[numbers]
        found = self.rows
        if over_ms >= 0:
            found = np.concatenate((found, rows_of(done)), dtype=found.dtype)
        return found[np.argsort(found["log_offset"], kind="stable")]
