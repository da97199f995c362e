"""Puts that wait for copies.

`add` is called by the threads that put. It hands over to the loop by a queue that needs no lock, since a signal handler may call it
while the same thread is in it.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable

from penstock.contracts import CopyOutcome
from penstock_replicate.master.copies import CopyTable

Notify = Callable[[CopyOutcome], None]


class _Waiter:
    """A put that waits; it is told once."""

    __slots__ = ("end_offset", "expires_s", "is_told", "notify")

    def __init__(self, end_offset: int, notify: Notify, expires_s: float) -> None:
        self.end_offset, self.notify, self.expires_s = end_offset, notify, expires_s
        self.is_told = False

    def tell(self, outcome: CopyOutcome) -> None:
        if not self.is_told:
            self.is_told = True
            self.notify(outcome)


class WaitingPuts:
    """Answers puts as copies acknowledge them, or when their time is over. `add` is safe from any thread; the rest is the loop's.

    Attributes:
        late: puts whose time was over.
        not_available: puts that found too few copies in sync.
    """

    def __init__(
        self, copies: CopyTable, needed: int, timeout_ms: int, time_s: Callable[[], float]
    ) -> None:
        self._copies, self._needed, self._time_s = copies, needed, time_s
        self._timeout_s = timeout_ms / 1000
        self._new: deque[_Waiter] = deque()
        # By end offset, and by the time at which they expire, which is the order in which they came.
        self._by_end: list[tuple[int, int, _Waiter]] = []
        self._by_time: deque[_Waiter] = deque()
        self._numbers = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.late = self.not_available = 0

    def add(self, end_offset: int, notify: Notify) -> bool:
        """Add a put; return whether the loop is to call `take_in`. Tells it at once if too few copies are in sync, or none is needed."""
        if self._is_over() or not self._needed or self._copies.in_sync_count < self._needed:
            self.not_available += 1
            notify(CopyOutcome.NOT_AVAILABLE)
            return False
        self._new.append(_Waiter(end_offset, notify, self._time_s() + self._timeout_s))
        # `close` may have emptied the queue in between.
        if self._is_over():
            self._tell_new(CopyOutcome.LATE)
        return True

    def _is_over(self) -> bool:
        return self._is_closed

    def take_in(self) -> None:
        """Take over what `add` has added."""
        while self._new:
            waiter = self._new.popleft()
            heapq.heappush(self._by_end, (waiter.end_offset, next(self._numbers), waiter))
            self._by_time.append(waiter)
        self.answer()
        self._set_alarm()

    def answer(self) -> None:
        """Tell the puts that enough copies have."""
        if not self._by_end:
            return
        received, flushed = self._copies.reached(self._needed)
        while self._by_end and self._by_end[0][0] <= received:
            end_offset, _, waiter = heapq.heappop(self._by_end)
            waiter.tell(CopyOutcome.ON_DISK if end_offset <= flushed else CopyOutcome.RECEIVED)
        while self._by_time and self._by_time[0].is_told:
            self._by_time.popleft()

    def _set_alarm(self) -> None:
        if self._alarm is None and self._by_time:
            delay = max(self._by_time[0].expires_s - self._time_s(), 0)
            self._alarm = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._alarm = None
        now = self._time_s()
        missed = 0
        while self._by_time and (self._by_time[0].is_told or self._by_time[0].expires_s <= now):
            waiter = self._by_time.popleft()
            if not waiter.is_told:
                missed = max(missed, waiter.end_offset)
                self.late += 1
                waiter.tell(CopyOutcome.LATE)
        self._by_end = [entry for entry in self._by_end if not entry[2].is_told]
        heapq.heapify(self._by_end)
        if missed:
            self._copies.miss(missed)
        self._set_alarm()

    def close(self) -> None:
        """Tell all that still wait that their copies are late."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._tell_new(CopyOutcome.LATE)
        for waiter in self._by_time:
            waiter.tell(CopyOutcome.LATE)
        self._by_time.clear()
        self._by_end.clear()

    def _tell_new(self, outcome: CopyOutcome) -> None:
        while self._new:
            try:
                waiter = self._new.popleft()
            except IndexError:
                return
            waiter.tell(outcome)
