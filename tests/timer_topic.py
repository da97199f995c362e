"""A timer topic without a store, and what a broker of RocketMQ 5 makes of timer files: an imitation of its recovery, in plain steps.

The imitation follows `TimerMessageStore.recover`, `recoverAndRevise`, `reviseQueueOffset` and `dequeue` of RocketMQ 5.3.3.
"""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import numpy as np

from penstock.contracts import Context
from penstock.contracts.dispatcher import QueueEntries
from penstock.errors import OffsetError
from penstock.files import Files
from penstock.testing import ManualClock
from penstock_messaging.properties_text import TIMER_TOPIC
from penstock_messaging.timers.timer_state import TimerUnit

UNIT = struct.Struct(">iqiqiqiiq")
SLOT = struct.Struct(">qqqii")
BLANK_KIND = -875286124
SECOND = 1000
START = 1_800_000_000_000


@attrs.define
class Record:
    log_offset: int
    size: int
    slot_ms: int
    kind: int = 1
    enqueue_ms: int = START


@attrs.define
class TimerTopic:
    """Stands for the store: the records of the timer topic's queue 0."""

    records: list[Record] = attrs.field(factory=list)
    first: int = 0

    def put(
        self, slot_ms: int, size: int = 300, kind: int = 1, enqueue_ms: int = START
    ) -> TimerUnit:
        """Add a record; returns its unit."""
        last = self.records[-1] if self.records else Record(64, 36, 0)
        record = Record(last.log_offset + last.size + 700, size, slot_ms, kind, enqueue_ms)
        self.records.append(record)
        return unit_of(record)

    def min_offset(self, topic: str, queue: int = 0) -> int:
        assert (topic, queue) == (TIMER_TOPIC, 0)
        return self.first

    def max_offset(self, topic: str, queue: int = 0) -> int:
        assert (topic, queue) == (TIMER_TOPIC, 0)
        return len(self.records)

    def queue_entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        assert (topic, queue) == (TIMER_TOPIC, 0)
        assert self.first <= start <= stop <= len(self.records)
        chosen = self.records[start:stop]
        return QueueEntries(
            np.array([each.log_offset for each in chosen], np.int64),
            np.array([each.size for each in chosen], np.int64),
            np.zeros(len(chosen), np.int64),
        )

    def at(self, log_offset: int) -> Any:
        for record in self.records[self.first :]:
            if record.log_offset == log_offset:
                return SimpleNamespace(topic=TIMER_TOPIC, record=record)
        raise OffsetError(log_offset, 0, 0)


def unit_of(record: Record) -> TimerUnit:
    return TimerUnit(
        record.slot_ms, record.log_offset, record.size, record.kind, record.enqueue_ms, -7
    )


def unit_of_message(message: Any, read_ms: int) -> TimerUnit | None:
    """Stands for the engine's reading of a record."""
    unit = unit_of(message.record)
    return unit if unit.slot_ms >= read_ms else None


def context_of(
    root: Path,
    files: Files | None = None,
    clock: ManualClock | None = None,
    *,
    read_only: bool = False,
) -> Context:
    """Return what the timer files need of a store."""
    made = SimpleNamespace(
        root=root, files=files or Files(), clock=clock or ManualClock(START), read_only=read_only,
        log_min_offset=lambda: 0,
    )  # fmt: skip
    return cast(Context, made)


@attrs.define
class BrokerView:
    """What a broker does with the files that it finds.

    Attributes:
        seconds: the log offsets that it reads in each second, in the order in which it puts them.
        queue_offset: where it goes on in the timer topic.
        read_ms: where it goes on in the wheel.
    """

    seconds: dict[int, list[int]]
    queue_offset: int
    read_ms: int

    def waiting(self) -> list[tuple[int, int]]:
        """Return all (second, log offset), by second."""
        return [(second, at) for second in sorted(self.seconds) for at in self.seconds[second]]


class BrokerTimers:
    """The recovery of one broker, over the files of a folder as bytes."""

    def __init__(
        self, contents: dict[str, bytes], topic: TimerTopic, slots: int, now_ms: int = START
    ) -> None:
        self.now_ms = now_ms
        self.topic = topic
        self.slots = slots
        names = sorted(name for name in contents if name.startswith("timerlog/"))
        self.logs = {int(name.partition("/")[2]): bytearray(contents[name]) for name in names}
        self.file_bytes = len(next(iter(self.logs.values()))) if self.logs else 0
        wheel = contents.get("timerwheel", b"")
        assert len(wheel) in (0, slots * SLOT.size), "a broker does not start"
        self.wheel = bytearray(wheel or bytes(slots * SLOT.size))
        check = contents.get("config/timercheck", b"").ljust(56, b"\0")
        self.read_ms, self.log_end, self.last_offset, self.master_offset = struct.unpack_from(
            ">4q", check
        )

    def recovered(self) -> BrokerView:
        """Return what it would deliver from the files, were nothing put any more."""
        begin = max(self.log_end - self.file_bytes, 0)
        end = self._revise(begin, is_checked=True)
        queue_offset = self._queue_offset_after(end)
        offset = self.last_offset if queue_offset is None else queue_offset + 1
        offset = min(offset, self.master_offset)
        offset = min(max(offset, self.topic.first), len(self.topic.records))
        # What waits for longer than a broker was stopped is lost for it.
        self.read_ms = max(self.read_ms, self.now_ms - (self.slots // 2 - 60) * SECOND)
        first = self._first_beyond(end)
        if first is not None and first < end:
            self._revise(first, is_checked=False)
        seconds = {}
        for number in sorted(self._slots()):
            found = self._second(number)
            if found:
                seconds[number * SECOND] = found
        return BrokerView(seconds, offset, self.read_ms)

    def _revise(self, begin: int, *, is_checked: bool) -> int:
        if not self.logs:
            return 0
        bases = sorted(self.logs)
        index = max((n for n, base in enumerate(bases) if begin >= base), default=0)
        end = bases[index]
        for base in bases[index:]:
            data, position, is_stopped = self.logs[base], 0, False
            while position + UNIT.size <= len(data):
                size, _, kind, enqueue_ms, delay_ms, *_ = UNIT.unpack_from(data, position)
                if kind == BLANK_KIND:
                    break
                is_good = (kind | 0xF) == 0xF and size == UNIT.size
                if is_checked and not is_good:
                    is_stopped = True
                    break
                if is_good:
                    self._revise_slot(enqueue_ms + delay_ms, base + position)
                position += UNIT.size
            end = base + position
            if is_stopped:
                break
        if is_checked:
            self._cut(end)
        return end

    def _cut(self, end: int) -> None:
        for base in sorted(self.logs)[1:]:
            if base >= end:
                del self.logs[base]
        for base, data in self.logs.items():
            # What is after the end is not read again.
            data[max(end - base, 0) :] = bytes(len(data) - min(max(end - base, 0), len(data)))

    def _revise_slot(self, time_ms: int, position: int) -> None:
        second = time_ms // SECOND
        at = second % self.slots * SLOT.size
        old, first, _, count, zero = SLOT.unpack_from(self.wheel, at)
        if old != second:
            first = position
        SLOT.pack_into(self.wheel, at, second, first, position, count, zero)

    def _queue_offset_after(self, end: int) -> int | None:
        position = end - UNIT.size
        base = position - position % self.file_bytes if self.file_bytes else 0
        if position < 0 or base not in self.logs:
            return None
        *_, log_offset, size, _, _ = UNIT.unpack_from(self.logs[base], position - base)
        for number, record in enumerate(self.topic.records):
            if number >= self.topic.first and (record.log_offset, record.size) == (
                log_offset,
                size,
            ):
                return number
        return None

    def _slots(self) -> "dict[int, tuple[int, int]]":
        """Return first and last of the slots that count now, by second."""
        rows = np.frombuffer(bytes(self.wheel), ">i8").reshape(self.slots, 4)
        start = self.read_ms // SECOND
        seconds = rows[:, 0].astype(np.int64)
        counts = (seconds >= start) & (seconds < start + self.slots)
        counts &= seconds % self.slots == np.arange(self.slots)
        return {int(row[0]): (int(row[1]), int(row[2])) for row in rows[counts]}

    def _first_beyond(self, end: int) -> int | None:
        return min((first for first, last in self._slots().values() if last > end), default=None)

    def _second(self, second: int) -> list[int]:
        old, _, at, _, _ = SLOT.unpack_from(self.wheel, second % self.slots * SLOT.size)
        found: list[int] = []
        if old != second:
            return found
        steps = 0
        while at != -1:
            base = at - at % (self.file_bytes or 1)
            if base not in self.logs:
                break
            _, at, kind, _, _, log_offset, size, _, _ = UNIT.unpack_from(self.logs[base], at - base)
            is_there = any(
                (each.log_offset, each.size) == (log_offset, size)
                for each in self.topic.records[self.topic.first :]
            )
            if is_there and (kind & 4 == 0 or kind & 2):
                found.insert(0, log_offset)
            steps += 1
            assert steps < 100_000, "a broker would never end"
        return found


def contents_of(root: Path) -> dict[str, bytes]:
    """Return the timer files below a folder."""
    paths = [
        root / "timerwheel",
        root / "config" / "timercheck",
        *(root / "timerlog").glob("[0-9]*"),
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.exists()}
