"""The messages whose second has come, in the order in which they are due. Not thread-safe."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock_messaging.timers.timer_message import Timer
from penstock_messaging.timers.waiting_timers import WaitingTimer


class DueTimer(NamedTuple):
    """A message that is delivered, or put to the timer topic again, at a time.

    Attributes:
        due_ms: when; after `entry.slot_ms`, at most a second.
        number: counts, so that of two that are due together the first one taken in is the first.
        entry: the message.
    """

    due_ms: int
    number: int
    entry: WaitingTimer


class DueTimers:
    """The messages of the seconds that have come and are not delivered yet."""

    def __init__(self) -> None:
        self._heap: list[DueTimer] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[DueTimer]:
        """Yield them in no order."""
        return iter(self._heap)

    def add(self, entry: WaitingTimer, due_ms: int) -> None:
        """Add a message."""
        self._count += 1
        heapq.heappush(self._heap, DueTimer(due_ms, self._count, entry))

    def first(self) -> DueTimer | None:
        """Return the one that is due first."""
        return self._heap[0] if self._heap else None

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> list[DueTimer]:
        """Remove and return those that are due, not more than these limits, but at least one."""
        taken: list[DueTimer] = []
        size = 0
        while self._heap and self._heap[0].due_ms <= now_ms and len(taken) < count_max:
            size += self._heap[0].entry.size
            if taken and size > bytes_max:
                break
            taken.append(heapq.heappop(self._heap))
        return taken

    def give_back(self, timers: Iterable[DueTimer]) -> None:
        """Add again what was taken and is not delivered."""
        for each in timers:
            heapq.heappush(self._heap, each)

    def of_second(self, slot_ms: int) -> list[DueTimer]:
        """Return those of a second."""
        return [each for each in self._heap if each.entry.slot_ms == slot_ms]

    def remove(self, log_offsets: Sequence[int]) -> int:
        """Remove the messages with these log offsets; return how many there were."""
        gone = set(log_offsets)
        kept = [each for each in self._heap if each.entry.log_offset not in gone]
        removed = len(self._heap) - len(kept)
        heapq.heapify(kept)
        self._heap = kept
        return removed


def due_in(entry: WaitingTimer, timer: Timer) -> int:
    """Return when an entry of a second that has come is to be handled: a cancelling or rolling one at the begin."""
    return entry.slot_ms + 1 if timer.out_ms > entry.slot_ms else timer.due_ms
