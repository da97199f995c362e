"""The messages whose second has come, in the order in which they are due: columns of each second, and what comes late.

A message of a second takes 40 bytes, one that is taken in when its second has begun some hundred. Not thread-safe; but
an `add` that an interrupt has ended can be done again.
"""

import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.format.arrays import Bools, Int64s, np
from penstock_messaging.timers.timer_message import Timer
from penstock_messaging.timers.waiting_timers import WaitingTimer, packed, unpacked

# So many rows are made objects at once.
_PART = 256


class DueTimer(NamedTuple):
    """A message that is delivered, or put to the timer topic again, at a time.

    Attributes:
        due_ms: when.
        number: counts, so that of two that are due together the first one taken in is the first.
        entry: the message.
        key: hash of what can cancel it, see `key_hash`; 0 for what cancels another one.
    """

    due_ms: int
    number: int
    entry: WaitingTimer
    key: int


class SecondColumns:
    """The messages of a second that comes, in the order in which they were taken in.

    Args:
        slot_ms: the second.
    """

    def __init__(self, slot_ms: int) -> None:
        self.slot_ms = slot_ms
        self.columns = tuple(array("q") for _ in range(4))

    def add(self, entry: WaitingTimer, due_ms: int, key: int) -> None:
        """Add a message."""
        for column, value in zip(
            self.columns, (due_ms, key, entry.log_offset, packed(entry)), strict=True
        ):
            column.append(value)


class _Run:
    """The rest of a second; `rows` has the columns of `SecondColumns` in the order in which they are due."""

    def __init__(self, slot_ms: int, rows: Int64s, numbers: Int64s) -> None:
        self.slot_ms, self.rows, self.numbers, self.at = slot_ms, rows, numbers, 0
        self._begin, self._part = 0, list[DueTimer]()

    def __len__(self) -> int:
        return len(self.numbers) - self.at

    def timers(self, start: int, stop: int) -> Iterator[DueTimer]:
        columns = *self.rows[:, start:stop].tolist(), self.numbers[start:stop].tolist()
        for due_ms, key, log_offset, fields, number in zip(*columns, strict=True):
            yield DueTimer(due_ms, number, unpacked(self.slot_ms, log_offset, fields), key)

    def first(self) -> DueTimer:
        at = self.at - self._begin
        if not 0 <= at < len(self._part):
            self._begin, at = self.at, 0
            self._part = [*self.timers(self.at, self.at + _PART)]
        return self._part[at]

    def left(self) -> Iterator[DueTimer]:
        for start in range(self.at, len(self.numbers), _PART):
            yield from self.timers(start, start + _PART)

    def chosen(self, is_chosen: Bools) -> Iterator[DueTimer]:
        """Yield some of those that are left."""
        for at in (np.flatnonzero(is_chosen) + self.at).tolist():
            yield from self.timers(at, at + 1)

    def kept(self, is_kept: Bools) -> "_Run":
        """Return some of those that are left."""
        chosen = np.flatnonzero(is_kept) + self.at
        return _Run(self.slot_ms, self.rows[:, chosen], self.numbers[chosen])


class DueTimers:
    """The messages of the seconds that have come and are not delivered yet."""

    def __init__(self) -> None:
        self._late: list[DueTimer] = []
        self._runs: list[_Run] = []
        # The first one of each run: time, number, the run.
        self._heads: list[tuple[int, int, _Run]] = []
        self._in_runs = self._count = 0
        self._adding = -1

    def __len__(self) -> int:
        return len(self._late) + self._in_runs

    def __iter__(self) -> Iterator[DueTimer]:
        """Yield them in no order."""
        yield from self._late
        for run in self._runs:
            yield from run.left()

    def add(self, entry: WaitingTimer, due_ms: int, key: int = 0) -> None:
        """Add a message whose second has begun; the last one may be added a second time, which does nothing."""
        log_offset = entry.log_offset
        if self._adding == log_offset and any(e.entry.log_offset == log_offset for e in self._late):
            return
        self._adding = log_offset
        self._count += 1
        heapq.heappush(self._late, DueTimer(due_ms, self._count, entry, key))

    def add_second(self, second: SecondColumns) -> None:
        """Add the messages of a second."""
        if not second.columns[0]:
            return
        rows = np.stack([np.frombuffer(column, np.int64) for column in second.columns])
        order = np.argsort(rows[0], kind="stable")
        numbers = order.astype(np.int64) + self._count + 1
        self._count += len(order)
        self._start(_Run(second.slot_ms, rows[:, order], numbers))

    def _start(self, run: _Run) -> None:
        self._runs.append(run)
        self._in_runs += len(run)
        heapq.heappush(self._heads, (*run.first()[:2], run))

    def first_ms(self) -> int | None:
        """Return when the one is due that is due first."""
        heads = [each[0][0] for each in (self._late, self._heads) if each]
        return min(heads, default=None)

    def slots_ms(self) -> Iterator[int]:
        """Yield the seconds of all messages, each at least once."""
        yield from (run.slot_ms for run in self._runs)
        yield from (each.entry.slot_ms for each in self._late)

    def pop_due(self, now_ms: int, count_max: int, bytes_max: int) -> list[DueTimer]:
        """Remove and return those that are due, not more than these limits, but at least one."""
        taken: list[DueTimer] = []
        size = 0
        while len(taken) < count_max:
            each = self._next()
            if each is None or each.due_ms > now_ms:
                break
            size += each.entry.size
            if taken and size > bytes_max:
                break
            self._drop_first()
            taken.append(each)
        return taken

    def _next(self) -> DueTimer | None:
        """Return the first one."""
        if self._heads and not (self._late and self._late[0][:2] < self._heads[0][:2]):
            return self._heads[0][2].first()
        return self._late[0] if self._late else None

    def _drop_first(self) -> None:
        if self._heads and not (self._late and self._late[0][:2] < self._heads[0][:2]):
            run = self._heads[0][2]
            run.at += 1
            self._in_runs -= 1
            if len(run):
                heapq.heapreplace(self._heads, (*run.first()[:2], run))
            else:
                heapq.heappop(self._heads)
                self._runs.remove(run)
        else:
            heapq.heappop(self._late)

    def give_back(self, timers: Iterable[DueTimer]) -> None:
        """Add again what was taken and is not delivered."""
        for each in timers:
            heapq.heappush(self._late, each)

    def with_offset(self, log_offset: int) -> DueTimer | None:
        """Return the message of the record at a log offset."""
        for run in self._runs:
            for each in run.chosen(run.rows[2, run.at :] == log_offset):
                return each
        return next((each for each in self._late if each.entry.log_offset == log_offset), None)

    def with_keys(self, keys: Sequence[int]) -> list[DueTimer]:
        """Return those with the hash of one of some keys."""
        found = [each for each in self._late if each.key in keys]
        for run in self._runs:
            found += run.chosen(np.isin(run.rows[1, run.at :], np.array(keys, np.int64)))
        return found

    def remove(self, log_offsets: Sequence[int]) -> int:
        """Remove the messages with these log offsets; return how many there were."""
        before, gone = len(self), np.array(log_offsets, np.int64)
        offsets = set(log_offsets)
        late = [each for each in self._late if each.entry.log_offset not in offsets]
        heapq.heapify(late)
        runs = [run.kept(~np.isin(run.rows[2, run.at :], gone)) for run in self._runs]
        runs = [run for run in runs if len(run)]
        heads = sorted((*run.first()[:2], run) for run in runs)
        count = sum(map(len, runs))
        # At once: an interrupt in between would lose the others.
        self._late, self._runs, self._heads, self._in_runs = late, runs, heads, count
        return before - len(self)


def key_hash(timer: Timer) -> int:
    """Return a hash of what cancels a message; another message may have the same one."""
    return hash((timer.second_ms, timer.key)) if timer.key and not timer.cancels else 0


def is_later(entry: WaitingTimer, timer: Timer, now_ms: int) -> bool:
    """Return whether a message goes on waiting when the second of its entry has come."""
    return timer.second_ms > max(entry.slot_ms, now_ms)


def due_in(entry: WaitingTimer, timer: Timer, now_ms: int) -> int:
    """Return when an entry of a second that has come is to be handled.

    An entry that goes on waiting is handled at once, and one that cancels others before these are due; that is put to
    its own second first, if it is looked at earlier.
    """
    if is_later(entry, timer, now_ms) or (timer.cancels and timer.second_ms > entry.slot_ms):
        return entry.slot_ms + 1
    return timer.second_ms if timer.cancels else timer.due_ms
