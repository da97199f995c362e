"""The waiting messages, kept in a broker's own files: `timerlog/`, `timerwheel` and `config/timercheck`.

The files say of each record of the timer topic below `queue_offset` when it is looked at; the records after it have not
been taken in. Saving costs what changed: units are appended, the slots of their seconds are changed, and `timercheck`
is replaced last. So after a crash the files say what they said before, and perhaps more: units of records from
`queue_offset` on, which are cut off.

Invariants:
    * Units are appended in the order of the timer topic, one for each record that has a time, whether it is delivered
      already or not: a broker goes on after the record of the last unit.
    * `timercheck` names no record whose unit is not durable.
    * The caller makes the log durable before it saves: a unit's record, and the copies from before `read_ms`.

Not thread-safe; one process writes.
"""

import contextlib
from array import array
from collections.abc import Iterator

import attrs

from penstock.contracts import Context
from penstock.format.arrays import Int64s, Structs, np
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_check import TimerCheck, read_check, write_check
from penstock_messaging.timers.timer_loading import Loading, TopicReader, UnitOf
from penstock_messaging.timers.timer_log import FILE_BYTES, TimerLog
from penstock_messaging.timers.timer_units import CLOSES, TimerUnit, rows_of
from penstock_messaging.timers.unit_chains import (
    SECOND_MS,
    empty_slots,
    link,
    slots_ms,
    slots_of,
)
from penstock_messaging.timers.wheel_file import SLOTS, WheelFile

__all__ = ["SIZES", "TimerFiles", "TimerSizes", "TimerState", "TimerUnit"]

# How many units are turned into objects at once.
_ROWS_AT_ONCE = 1 << 14
# A time that is further ahead than that was not read from a clock.
_AHEAD_MS_MAX = 7 * 24 * 3600 * SECOND_MS


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


@attrs.frozen
class TimerState:
    """The content of the files.

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
        for start in range(0, len(self.rows), _ROWS_AT_ONCE):
            rows = self.rows[start : start + _ROWS_AT_ONCE]
            names = ("log_offset", "size", "kind", "enqueue_ms", "topic_hash")
            columns = [slots_ms(rows).tolist(), *(rows[name].tolist() for name in names)]
            yield from map(TimerUnit._make, zip(*columns, strict=True))


class TimerFiles:
    """The timer files of one store.

    First `load`, then any number of `add` and `save`. After a `save` that failed the next one writes the same and more.

    Args:
        context: of the extension.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files, self._root, self._clock = context.files, context.root, context.clock
        self._log = TimerLog(context.files, context.root, SIZES.log_file_bytes)
        self._wheel = WheelFile(context.files, context.root, SIZES.slots)
        self._check = TimerCheck(0, 0, 0)
        # The fields of units that were added, six numbers each.
        self._added = array("q")
        # The data of a save until it has succeeded: positions, units, slots.
        self._batch: tuple[Int64s, Structs, Structs] | None = None
        # Log offset and size of the record of the last unit, and of the last record that was taken in.
        self._last = self._newest = (-1, 0)

    # --- loading

    def load(self, store: TopicReader, unit_of: UnitOf) -> TimerState | None:
        """Return what waits; None if the store has no record of that. Repairs the files unless the store is read-only.

        Args:
            store: open, with its recovery done.
            unit_of: for the records of the timer topic whose units are lost.
        """
        problems: list[str] = []
        check = self._read_check(store, problems)
        try:
            found = self._log.read()
        except FileNotFoundError:
            # The writer has trimmed it meanwhile.
            found = self._log.read()
        if check is None:
            # Nothing says what of it was delivered.
            if not self._context.read_only:
                self._clear()
            return None if not problems else TimerState(0, 0, found.units[:0], problems[0])
        self._check = check
        loading = Loading(store, check, found, self._horizon_ms())
        loading.restore(unit_of)
        self._last, self._newest = loading.last, loading.newest
        if not self._context.read_only:
            if loading.is_whole:
                self._tidy(loading.kept_end(self._log), loading.rows, loading.positions)
            else:
                self._rebuild(loading.all_rows(), loading.slots())
            self._log.trim(self._context.log_min_offset())
        problem = "; ".join(problems + loading.problems)
        return TimerState(check.read_ms, check.queue_offset, loading.rows, problem)

    def _clear(self) -> None:
        """Remove what nothing tells of; the wheel first, since its slots would lead into the log that comes next."""
        self._wheel.clear()
        self._log.remove(self._log.renew())

    def _horizon_ms(self) -> int:
        """Return the time from which on no unit can be right: the wheel has no slot for it."""
        now_ms = max(self._clock.time_ms(), self._check.read_ms)
        return now_ms + self._wheel.slots // 2 * SECOND_MS

    def _read_check(self, store: TopicReader, problems: list[str]) -> TimerCheck | None:
        """Return how far things are; what cannot be right is named, and replaced by what loses no message."""
        try:
            check = read_check(self._files, self._root)
        except ValueError as error:
            problems.append(f"{error}: all messages that are left are delivered again")
            return None
        if check is None:
            return None
        if not 0 <= check.read_ms <= self._clock.time_ms() + _AHEAD_MS_MAX:
            problems.append(
                f"timercheck says that messages are delivered up to {check.read_ms} ms, which cannot be: "
                f"all that are left are delivered again"
            )
            check = attrs.evolve(check, read_ms=0)
        low, high = store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)
        inside = min(max(check.queue_offset, low), high)
        if inside < check.queue_offset:
            problems.append(
                f"timercheck says that the queue is taken in to {check.queue_offset}, and it ends at {high}"
            )
        return attrs.evolve(check, queue_offset=inside)

    def _tidy(self, end: int, rows: Structs, positions: Int64s) -> None:
        """Make the wheel agree with the log, and cut off what a crash has left after the log's end.

        The wheel comes first: a slot that named a unit that is gone would lead a broker through zeros.
        """
        slots = slots_of(slots_ms(rows), positions, rows["kind"])
        changed = self._wheel.differing(slots, self._check.read_ms // SECOND_MS)
        if changed is None:
            if len(slots):
                self._wheel.replace(slots)
        elif len(changed):
            self._wheel.write(changed)
        self._log.cut(end)

    def _rebuild(self, units: Structs, before: Structs) -> None:
        """Write units for all records again, and remove the old files.

        Units written before a crash say of each record what the old ones do, and Penstock does all this again. A broker
        that comes instead takes the new chains: these begin as the old ones' ends, and are parted when whole.

        Args:
            units: for all records.
            before: the slots of the old chains that can be used.
        """
        old = self._log.renew()
        units = units.copy()
        seconds, positions = slots_ms(units), self._log.place(len(units))
        slots = empty_slots(seconds)
        _, at, found = np.intersect1d(
            slots["second"], before["second"], assume_unique=True, return_indices=True
        )
        slots[at] = before[found]
        link(seconds, positions, units, slots)
        self._log.write(positions, units)
        if len(found):
            slots = empty_slots(seconds)
            link(seconds, positions, units, slots)
            self._log.overwrite(positions, units)
        else:
            slots = slots_of(seconds, positions, units["kind"])
        self._wheel.replace(slots[slots["second"] >= self._check.read_ms // SECOND_MS])
        self._log.remove(old)
        self._last = self._newest

    def _closing(self, last_log_offset: int) -> Structs | None:
        """Return a unit in a past second for the newest record that was taken in; None if it has one at the end.

        A broker goes on after the record of the last unit.
        """
        log_offset, size = self._newest
        if log_offset == last_log_offset or log_offset < 0 or self._check.read_ms < SECOND_MS:
            return None
        slot_ms = self._check.read_ms - SECOND_MS
        return rows_of([TimerUnit(slot_ms, log_offset, size, CLOSES, slot_ms, 0)])

    # --- saving

    def add(self, unit: TimerUnit) -> None:
        """Add the unit of the next record of the timer topic; `save` writes it.

        Records are added in the order of their queue, each once, also those that were due when they were taken in.
        """
        self._added.extend(unit)

    def save(self, read_ms: int, queue_offset: int) -> None:
        """Write all that was added and how far things are, durably; raises `OSError` if that fails, to be tried again.

        Args:
            read_ms: a second; whatever was due in seconds before it is delivered, and durable.
            queue_offset: after the last record that was added.
        """
        while self._batch is not None or self._added:
            if self._batch is None:
                self._batch = self._chained(self._added_units())
                self._added = array("q")
            self._write()
        self._write_check(read_ms, queue_offset)
        # What is left is trimmed by the next save, or opening.
        with contextlib.suppress(OSError):
            self._log.trim(self._context.log_min_offset())

    def leave(self, read_ms: int, queue_offset: int, units: list[TimerUnit]) -> None:
        """Save at a close while a part of the second `read_ms` is delivered: only `units` of that second are left.

        Args:
            read_ms: the second.
            queue_offset: as for `save`.
            units: of that second, what is not delivered.
        """
        self.save(read_ms, queue_offset)
        if not units:
            # The whole second is delivered; what comes for it later is due when it is taken in.
            self._write_check(read_ms + SECOND_MS, queue_offset)
            return
        left = rows_of([unit._replace(slot_ms=read_ms) for unit in units])
        over = self._delivered(read_ms, left)
        # The new chain begins as the old one's end, and is parted when whole: a broker must not find a part of it.
        self._batch = self._chained(np.concatenate((over, left), dtype=left.dtype))
        positions = self._batch[0][len(over) :]
        rows = self._batch[1][len(over) :].copy()
        self._write()
        slots = empty_slots(slots_ms(rows))
        link(slots_ms(rows), positions, rows, slots)
        self._log.overwrite(positions, rows)
        self._wheel.write(slots)
        closing = self._closing(self._last[0])
        if closing is not None:
            self._batch = self._chained(closing)
            self._write()
        self._write_check(read_ms, queue_offset)

    def _delivered(self, slot_ms: int, left: Structs) -> Structs:
        """Return units which say that of a second all is delivered that is not left."""
        slots = empty_slots(np.array([slot_ms], np.int64))
        self._wheel.read(slots)
        rows = self._log.chain(int(slots["last"][0]))
        rows = rows[
            ~np.isin(rows["log_offset"].astype(np.int64), left["log_offset"].astype(np.int64))
        ]
        rows = rows.copy()
        rows["enqueue_ms"], rows["delay_ms"] = slot_ms - SECOND_MS, 0
        return rows

    def _write(self) -> None:
        """Write the batch; after a failure it stays, and is written again."""
        if self._batch is None:
            return
        positions, units, slots = self._batch
        self._log.write(positions, units)
        self._wheel.write(slots)
        self._last = int(units["log_offset"][-1]), int(units["size"][-1])
        self._newest = max(self._newest, self._last)
        self._batch = None

    def _write_check(self, read_ms: int, queue_offset: int) -> None:
        check = attrs.evolve(
            self._check, read_ms=read_ms, log_end=self._log.end, queue_offset=queue_offset
        )
        self._check = write_check(self._files, self._root, check, self._clock.time_ms())

    def _added_units(self) -> Structs:
        """Return what was added, as units without their chains."""
        columns = np.array(self._added, np.int64).reshape(-1, len(TimerUnit._fields))
        # A second that is over is not looked at again; a much older one would use the slot of one that is to come.
        columns[:, 0] = np.maximum(columns[:, 0], self._check.read_ms - SECOND_MS)
        return rows_of(columns)

    def _chained(self, units: Structs) -> tuple[Int64s, Structs, Structs]:
        """Return positions, units and changed slots for units that are to be appended."""
        positions, seconds = self._log.place(len(units)), slots_ms(units)
        slots = empty_slots(seconds)
        self._wheel.read(slots)
        link(seconds, positions, units, slots)
        return positions, units, slots
