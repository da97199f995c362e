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
from penstock_messaging.timers.unit_chains import members, slots_ms


class Loading:
    """One load: compares the timer log with the timer topic.

    Attributes:
        problems: what was wrong, in sentences.
        positions: of the rows that `rows` returned.
        newest: log offset and size of the last record below the saved offset; (-1, 0) if there is none.
        last: the same of the last unit.
    """

    def __init__(self, store: OpenStore, check: TimerCheck, found: LogUnits) -> None:
        self._store, self._check, self._found = store, check, found
        self.problems = [found.damage] if found.damage else []
        low, high = store.min_offset(TIMER_TOPIC), store.max_offset(TIMER_TOPIC)
        stop = check.queue_offset
        self._entries = store.queue_entries(TIMER_TOPIC, 0, low, min(stop + 1, high))
        self._count = max(stop - low, 0)
        next_log_offset = 1 << 62
        if len(self._entries.log_offsets) > self._count and self._entries.sizes[self._count]:
            next_log_offset = int(self._entries.log_offsets[self._count])
        entries = QueueEntries(*(column[: self._count] for column in self._entries))
        self._matched = match(found.units, entries, next_log_offset)
        self.newest = self.last = (-1, 0)
        known = np.flatnonzero(entries.sizes > 0)
        if len(known):
            at = known[-1]
            self.newest = int(entries.log_offsets[at]), int(entries.sizes[at])
        kept = self._matched.kept
        if kept:
            unit = found.units[kept - 1]
            self.last = int(unit["log_offset"]), int(unit["size"])
        self.positions = found.positions[:0]

    def kept_end(self, log: TimerLog) -> int:
        """Return where the timer log ends once that is cut off which a crash has left."""
        kept, positions = self._matched.kept, self._found.positions
        if kept == len(positions):
            return log.end
        return int(positions[kept])

    def rows(
        self, horizon_ms: int, unit_of: Callable[[StoredMessage], TimerUnit | None]
    ) -> tuple[Structs, bool]:
        """Return the units that wait, and whether the files have exactly these."""
        kept = self._matched.kept
        units, positions = self._found.units[:kept], self._found.positions[:kept]
        seconds = slots_ms(units)
        waits = np.flatnonzero(seconds >= self._check.read_ms)
        begin = int(positions[0]) if kept else 0
        chosen, is_linked = members(seconds[waits], positions[waits], units[waits], begin)
        chosen = waits[chosen]
        is_good = self._matched.is_true[chosen] & (seconds[chosen] < horizon_ms)
        is_alien = ~(is_good | self._matched.is_old[chosen])
        if not is_linked:
            self.problems.append("chains of the timer log are broken")
        if is_alien.any():
            self.problems.append(
                f"{int(is_alien.sum())} units of the timer log name no record of the timer topic"
            )
        good = chosen[is_good]
        good, is_single = _without_doubles(good, units)
        restored = self._restored(self._missing(units, seconds, horizon_ms), unit_of)
        self.positions = positions[good]
        is_ordered = not kept or self.last[0] >= int(units["log_offset"][:kept].max())
        is_whole = (
            is_linked and is_single and is_ordered and not is_alien.any() and len(restored) == 0
            and not self._found.damage
        )  # fmt: skip
        rows = units[good]
        if len(restored):
            rows = np.concatenate((rows, restored), dtype=rows.dtype)
            rows = rows[np.lexsort((rows["log_offset"], slots_ms(rows)))]
        if self.problems:
            self.problems.append("what waits was read from the timer topic instead")
        return rows, is_whole

    def _missing(self, units: Structs, seconds: Int64s, horizon_ms: int) -> Int64s:
        """Return the numbers of entries that no unit tells of."""
        far = units["log_offset"][self._matched.is_true[: len(units)] & (seconds >= horizon_ms)]
        if len(far) == 0:
            return self._matched.missing
        is_far = np.isin(self._entries.log_offsets[: self._count], far.astype(np.int64))
        return np.union1d(self._matched.missing, np.flatnonzero(is_far))

    def _restored(
        self, missing: Int64s, unit_of: Callable[[StoredMessage], TimerUnit | None]
    ) -> Structs:
        """Return units for records that have none and still wait: of files that are lost.

        A broker writes none for a message that is due when it is taken in.
        """
        found, waiting = [], 0
        for number in missing.tolist():
            try:
                message = self._store.at(int(self._entries.log_offsets[number]))
            except PenstockError:
                continue
            if message.topic != TIMER_TOPIC:
                continue
            unit = unit_of(message)
            if unit is not None and unit.slot_ms >= self._check.read_ms:
                waiting += 1
                found.append(unit)
        if waiting:
            self.problems.append(f"{waiting} messages that wait are not in the timer log")
        return rows_of(found)


def _without_doubles(chosen: Int64s, units: Structs) -> tuple[Int64s, bool]:
    """Return the units that are left if each record counts once, and whether each did."""
    offsets = units["log_offset"][chosen].astype(np.int64)
    order = np.argsort(offsets, kind="stable")
    is_first = np.ones(len(order), bool)
    is_first[1:] = offsets[order][1:] != offsets[order][:-1]
    if is_first.all():
        return chosen, True
    is_left = np.zeros(len(order), bool)
    is_left[order[is_first]] = True
    return chosen[is_left], False
