"""What waits, kept in a broker's own files: `timerlog/`, `timerwheel` and `config/timercheck`.

The files say of each record of the timer topic below `queue_offset` when it is looked at; the records after it have not been
taken in. Saving costs what changed: units are appended, the slots of their seconds are changed, and `timercheck` is replaced
last. So after a crash the files say what they said before, and perhaps more: units of records from `queue_offset` on, which are
cut off.

Invariants:
    * Units are appended in the order of the timer topic, one for each record that has a time, whether it is delivered already or
      not: a broker goes on after the record of the last unit.
    * `timercheck` names no record whose unit is not durable.
    * The caller makes the log durable before it saves: a unit's record, and the copies that were delivered before `read_ms`.

Not thread-safe; one process writes.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import attrs

from penstock import StoredMessage
from penstock.contracts import Context, OpenStore
from penstock.format.arrays import Int64s, Structs, np
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_check import TimerCheck, read_check, write_check
from penstock_messaging.timers.timer_log import FILE_BYTES, UNIT, UNIT_BYTES, TimerLog
from penstock_messaging.timers.wheel_file import NO_UNIT, SLOTS, WheelFile

SECOND_MS = 1000
_INT32 = 1 << 31


@attrs.frozen
class TimerSizes:
    """The sizes of files that are created; a broker has no other ones, unless its configuration says so.

    Attributes:
        slots: of the wheel.
        log_file_bytes: of each file of the timer log.
    """

    slots: int = SLOTS
    log_file_bytes: int = FILE_BYTES


# Tests may set smaller ones.
SIZES = TimerSizes()


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


@attrs.frozen
class TimerState:
    """What the files say.

    Attributes:
        read_ms: what was due in seconds before this one is delivered.
        queue_offset: the offset of the timer topic that is taken in next.
        rows: what waits, as rows of type `timer_log.UNIT`, by second and then as it was taken in.
        problem: what was wrong in the files, and what is done about it; "" if nothing was.
    """

    read_ms: int
    queue_offset: int
    rows: Structs
    problem: str = ""

    def units(self) -> Iterator[TimerUnit]:
        """Yield what waits."""
        for row in self.rows.tolist():
            _, _, kind, enqueue_ms, delay_ms, log_offset, size, topic_hash, _ = row
            yield TimerUnit(enqueue_ms + delay_ms, log_offset, size, kind, enqueue_ms, topic_hash)


class TimerFiles:
    """The timer files of one store.

    First `load`, then any number of `add` and `save`. After a `save` that failed the next one writes the same and more.

    Args:
        context: of the extension.
    """

    def __init__(self, context: Context) -> None:
        self._files, self._root, self._clock = context.files, context.root, context.clock
        self._read_only = context.read_only
        self._log = TimerLog(context.files, context.root, SIZES.log_file_bytes)
        self._wheel = WheelFile(context.files, context.root, SIZES.slots)
        self._check = TimerCheck(0, 0, 0)
        self._added: list[TimerUnit] = []
        # What a save writes, until it has succeeded: positions, units, slots.
        self._batch: tuple[Int64s, Structs, Structs] | None = None

    def load(
        self, store: OpenStore, unit_of: Callable[[StoredMessage], TimerUnit | None]
    ) -> TimerState | None:
        """Return what waits; None if the store never had timer messages. The files are put right unless the store is read-only.

        Args:
            store: open, with its recovery done.
            unit_of: returns how a record of the timer topic is taken in, None if it has no time; for records whose units are lost.
        """
        check = read_check(self._files, self._root)
        if check is None:
            return None
        self._check = check
        found = self._log.read()
        second = found.units["enqueue_ms"].astype(np.int64) + found.units["delay_ms"]
        waits = np.flatnonzero(second >= check.read_ms)
        order = waits[np.lexsort((found.positions[waits], second[waits]))]
        return TimerState(check.read_ms, check.queue_offset, found.units[order])

    def add(self, unit: TimerUnit) -> None:
        """Add the unit of the next record of the timer topic; `save` writes it.

        Records are added in the order of their queue, each once, also those that were due when they were taken in.
        """
        self._added.append(unit)

    def save(self, read_ms: int, queue_offset: int) -> None:
        """Write all that was added and how far things are, durably; raises `OSError` if that fails, to be tried again.

        Args:
            read_ms: a second; whatever was due in seconds before it is delivered, and durable.
            queue_offset: after the last record that was added.
        """
        while self._batch is not None or self._added:
            if self._batch is None:
                self._batch, self._added = self._made(self._added), []
            positions, units, slots = self._batch
            self._log.write(positions, units)
            self._wheel.write(slots)
            self._batch = None
        check = attrs.evolve(
            self._check, read_ms=read_ms, log_end=self._log.end, queue_offset=queue_offset
        )
        self._check = write_check(self._files, self._root, check, self._clock.time_ms())

    def leave(self, read_ms: int, queue_offset: int, units: list[TimerUnit]) -> None:
        """Save at a close while a part of the second `read_ms` is delivered: only `units` of that second are left.

        Args:
            read_ms: the second.
            queue_offset: as for `save`.
            units: of that second, what is not delivered.
        """
        self.save(read_ms, queue_offset)

    def _made(self, added: list[TimerUnit]) -> tuple[Int64s, Structs, Structs]:
        """Return positions, units and changed slots for what was added."""
        positions = self._log.place(len(added))
        columns = np.array([tuple(unit) for unit in added], np.int64).reshape(-1, 6)
        # A second that is over is not looked at again; a much older one would use the slot of one that is to come.
        slot_ms = np.maximum(columns[:, 0], self._check.read_ms - SECOND_MS)
        units = np.zeros(len(added), UNIT.dtype)
        units["unit_size"] = UNIT_BYTES
        units["log_offset"], units["size"], units["kind"] = (
            columns[:, 1],
            columns[:, 2],
            columns[:, 3],
        )
        units["enqueue_ms"], units["delay_ms"] = columns[:, 4], slot_ms - columns[:, 4]
        units["topic_hash"] = columns[:, 5]
        slots = self._chained(slot_ms // SECOND_MS, positions, units)
        return positions, units, slots

    def _chained(self, seconds: Int64s, positions: Int64s, units: Structs) -> Structs:
        """Set `previous` of each unit, and return the slots as they are then."""
        order = np.lexsort((positions, seconds))
        sorted_seconds = seconds[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = sorted_seconds[1:] != sorted_seconds[:-1]
        slots = self._wheel.read(sorted_seconds[is_first])
        number = np.cumsum(is_first) - 1
        previous = np.empty(len(order), np.int64)
        previous[1:] = positions[order][:-1]
        previous[is_first] = slots["last"]
        units["previous"][order] = previous
        is_last = np.ones(len(order), bool)
        is_last[:-1] = is_first[1:]
        starts = slots["first"] == NO_UNIT
        slots["first"][starts] = positions[order][is_first][starts]
        slots["last"] = positions[order][is_last]
        cancels = (units["kind"][order] & 4) != 0
        slots["count"] += np.bincount(number, np.where(cancels, -1, 1)).astype(np.int32)
        return slots
