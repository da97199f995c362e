"""Reads what waits from the timer log, and finds out whether the log can be used as it is.

The units of each second's last chain wait. They are compared with the timer topic; whatever does not fit is not used, and records
that have no unit, and still wait by their own properties, are added.
"""

from collections.abc import Callable

from penstock import StoredMessage
from penstock.contracts import OpenStore
from penstock.contracts.dispatcher import QueueEntries
from penstock.errors import PenstockError
from penstock.format.arrays import Int64s, Structs, np
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_check import TimerCheck
from penstock_messaging.timers.timer_log import LogUnits, TimerLog
from penstock_messaging.timers.timer_units import TimerUnit, match, rows_of
from penstock_messaging.timers.unit_chains import SECOND_MS, firsts, members, slots_ms

# If more records than that have no unit, they get one, so that they are not read again at each opening.
_READ_MAX = 1000
# Every unit may be of a record in the future of a queue's end.
_NO_OFFSET = 1 << 62


class Loading:
    """One load: compares the timer log with the timer topic.

    Args:
        store: open.
        check: how far things are.
        found: what the timer log has.
        horizon_ms: no unit can be right from that time on.

    Attributes:
        problems: what was wrong, in sentences.
        is_whole: whether the log can be used as it is.
        rows: the units that wait, by second; of chains as they are in the log, if `is_whole`.
        positions: of the rows, if `is_whole`.
        newest: log offset and size of the last record below the saved offset; (-1, 0) if there is none.
        last: the same of the last unit.
    """

    def __init__(
        self, store: OpenStore, check: TimerCheck, found: LogUnits, horizon_ms: int
    ) -> None:
        self._store, self._check, self._found = store, check, found
        self.problems = [found.damage] if found.damage else []
        low, high = store.min_offset(TIMER_TOPIC), store.max_offset(TIMER_TOPIC)
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
        """Find out which units wait, and whether their chains have these, each once and in the order of the topic."""
        seconds, is_true = slots_ms(units), self._matched.is_true[: len(units)]
        waits = np.flatnonzero(seconds >= self._check.read_ms)
        begin = int(positions[0]) if len(positions) else 0
        chosen, is_linked = members(seconds[waits], positions[waits], units[waits], begin)
        chosen = waits[chosen]
        if not is_linked:
            self.problems.append("chains of the timer log are broken")
        is_near = seconds < horizon_ms
        is_good = is_true[chosen] & is_near[chosen]
        is_alien = ~(is_good | self._matched.is_old[chosen])
        if is_alien.any():
            self.problems.append(
                f"{int(is_alien.sum())} units of the timer log name no record of the timer topic"
            )
        good = chosen[is_good]
        single = good[_firsts(units["log_offset"][good])]
        is_ordered = len(units) == 0 or self.last[0] >= int(units["log_offset"].max())
        self.rows, self.positions = units[single], positions[single]
        self._far = units["log_offset"][is_true & ~is_near].astype(np.int64)
        self.is_whole = (
            is_linked and is_ordered and not is_alien.any() and len(single) == len(good)
            and not self._found.damage
        )  # fmt: skip

    def restore(self, unit_of: Callable[[StoredMessage], TimerUnit | None]) -> None:
        """Add the records that have no unit and still wait: of files that are lost.

        A broker writes none for a message that is due when it is taken in.
        """
        missing = self._matched.missing
        if len(self._far):
            is_far = np.isin(self._entries.log_offsets, self._far) & (self._entries.sizes > 0)
            missing = np.union1d(missing, np.flatnonzero(is_far))
        found = []
        for number in missing.tolist():
            try:
                message = self._store.at(int(self._entries.log_offsets[number]))
            except PenstockError:
                continue
            unit = unit_of(message) if message.topic == TIMER_TOPIC else None
            if unit is not None and unit.slot_ms >= self._check.read_ms:
                found.append(unit)
        if found:
            self.problems.append(f"{len(found)} messages that wait are not in the timer log")
            rows = np.concatenate((self.rows, rows_of(found)), dtype=self.rows.dtype)
            self.rows = rows[np.lexsort((rows["log_offset"], slots_ms(rows)))]
        if self.problems:
            self.problems.append("what waits was read from the timer topic instead")
        self.is_whole = self.is_whole and not found and len(missing) <= _READ_MAX

    def all_rows(self) -> Structs:
        """Return a unit for each record below the saved offset, in their order: what does not wait is in a second that is over."""
        entries, over_ms = self._entries, self._check.read_ms - SECOND_MS
        is_done = (entries.sizes > 0) & ~np.isin(
            entries.log_offsets, self.rows["log_offset"].astype(np.int64)
        )
        done = np.zeros((int(is_done.sum()), len(TimerUnit._fields)), np.int64)
        done[:] = (over_ms, 0, 0, 1, over_ms, 0)
        done[:, 1], done[:, 2] = entries.log_offsets[is_done], entries.sizes[is_done]
        found = self.rows
        if over_ms >= 0:
            found = np.concatenate((found, rows_of(done)), dtype=found.dtype)
        return found[np.argsort(found["log_offset"], kind="stable")]


def _firsts(offsets: Int64s) -> Int64s:
    """Return the indexes, ascending, of the values that were not there before."""
    order = np.argsort(offsets.astype(np.int64), kind="stable")
    return np.sort(order[firsts(offsets[order])])
