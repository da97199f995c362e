"""Which stores have how much of the log, and what puts may therefore believe.

A copy is a store, known by its id (of RocketMQ, by its host), not a connection. It counts from its first
acknowledgement on a connection and as long as that connection lasts. `reached` is the greatest log offset before which
`needed` copies have every byte; what a copy says on connecting does not count, since it has not been compared.

A copy is in sync if it has what was visible one heartbeat ago, and everything up to the last put that has timed out.
"""

from bisect import bisect, bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import attrs

from penstock.contracts import ReplicatedLog

# One each heartbeat: the lag of a copy is told for up to an hour.
SAMPLES_MAX = 3600
# Copies whose connection has ended, and connections that were refused, that are still listed.
_ENDED_MAX = 8
NOTHING = -1


@attrs.define
class Copy:
    """One store that follows, for as long as one connection lasts.

    Attributes:
        store: its id.
        address: "HOST:PORT" from which it has connected.
        counts_from_ms: the monotonic time from which on it counts.
        received: its system has every whole record before that log offset; -1 before its first acknowledgement.
        flushed: the same, durably.
        is_connected: False once its connection has ended, or the same store has connected again.
        last_error: why the connection has ended.
    """

    store: str
    address: str
    counts_from_ms: int
    received: int = NOTHING
    flushed: int = NOTHING
    is_connected: bool = True
    last_error: str = ""


class Copies:
    """The copies of one log. Not thread-safe: for the thread of the event loop.

    Attributes:
        reached: enough copies have, or have had, everything before it. Never decreases.
        in_sync: how many copies are in sync.
    """

    def __init__(
        self, log: ReplicatedLog, *, needed: int, wait_for: str, timeout_ms: int, heartbeat_ms: int, now_ms: int
    ) -> None:  # fmt: skip
        self._log, self._needed = log, needed
        self._is_for_disk = wait_for == "disk"
        self._timeout_ms, self._heartbeat_ms, self._now_ms = timeout_ms, heartbeat_ms, now_ms
        self.reached = 0
        # Everything before it was put by an earlier process: nobody waits for it.
        self._first_put = log.visible_offset
        self.in_sync = self._missed = 0
        self._copies: dict[str, Copy] = {}
        # Times, and what was visible then; both ascend.
        self._samples = [(now_ms, log.visible_offset)]
        # What was visible one heartbeat ago.
        self._due = log.visible_offset

    def join(self, store: str, address: str, begins: int) -> Copy:
        """Add a copy that has just been accepted; an earlier connection of the same store no longer counts.

        `begins` is the log offset where the copy's log begins: it has nothing before it.
        """
        if store in self._copies:
            self.leave(self._copies[store], "the same store has connected again")
        # Puts that wait now and end before `begins` must not be answered by it: they wait for at most `timeout_ms`.
        wait_ms = self._timeout_ms if begins > max(self.reached, self._first_put) else 0
        copy = Copy(store, address, self._now_ms + wait_ms)
        self._copies[store] = copy
        self.refresh()
        return copy

    def acked(self, copy: Copy, received: int, flushed: int) -> None:
        """Note what a copy has acknowledged, which counts while it is connected."""
        copy.received, copy.flushed = received, flushed
        self.refresh()

    def leave(self, copy: Copy, reason: str) -> None:
        """Note that a copy's connection has ended; a second call changes nothing."""
        if copy.is_connected:
            copy.is_connected, copy.last_error = False, reason
            self._list_last(copy)
        self.refresh()

    def refuse(self, store: str, address: str, reason: str) -> None:
        """List a store that was not accepted, unless it is connected otherwise."""
        if store not in self._copies or not self._copies[store].is_connected:
            self._list_last(Copy(store, address, 0, is_connected=False, last_error=reason))

    def _list_last(self, copy: Copy) -> None:
        self._copies.pop(copy.store, None)
        self._copies[copy.store] = copy
        ended = [store for store, copy in self._copies.items() if not copy.is_connected]
        for store in ended[:-_ENDED_MAX]:
            del self._copies[store]

    def tick(self, now_ms: int) -> None:
        """Note the time and how far the log is."""
        self._now_ms = now_ms
        last_ms, _ = self._samples[-1]
        if now_ms - last_ms >= self._heartbeat_ms:
            self._samples.append((now_ms, self._log.visible_offset))
            del self._samples[:-SAMPLES_MAX]
        self._due = self._visible_before(now_ms - self._heartbeat_ms)
        self.refresh()

    def look(self) -> None:
        """Refresh if a put has timed out since the last time; called at each ring of the bell."""
        if self._log.missed_offset != self._missed:
            self.refresh()

    def refresh(self) -> None:
        """Tell the log how far enough copies are, and whether a put may wait for them."""
        self._missed = missed = self._log.missed_offset
        ends = sorted(
            copy.flushed if self._is_for_disk else copy.received
            for copy in self._copies.values()
            if copy.is_connected and copy.counts_from_ms <= self._now_ms
        )
        self.in_sync = len(ends) - bisect_left(ends, max(missed, self._due))
        if not self._needed:
            return
        if len(ends) >= self._needed:
            self.reached = max(self.reached, ends[-self._needed])
        self._log.reach(self.reached, available=self.in_sync >= self._needed, missed=missed)

    def _visible_before(self, time_ms: int) -> int:
        """Return what was visible at a time, or, if that is not known, soon after it."""
        at = bisect(self._samples, time_ms, key=itemgetter(0))
        return self._samples[max(at - 1, 0)][1]

    def status(self) -> Sequence[dict[str, Any]]:
        """Return of each copy, in the order in which they connected: JSON values for people and monitors.

        `lag_bytes` and `lag_ms` state how much, and since when, of what is visible it lacks.
        """
        visible = self._log.visible_offset
        found = []
        for copy in self._copies.values():
            one = attrs.asdict(copy, filter=attrs.filters.exclude("counts_from_ms"))
            if copy.is_connected and copy.received != NOTHING:
                one["lag_bytes"] = max(visible - copy.received, 0)
                one["lag_ms"] = self._lag_ms(copy.received)
            found.append(one)
        return found

    def _lag_ms(self, received: int) -> int:
        """Return for how long something after `received` has been visible, up to a heartbeat less."""
        at = bisect(self._samples, received, key=itemgetter(1))
        return self._now_ms - self._samples[at][0] if at < len(self._samples) else 0
