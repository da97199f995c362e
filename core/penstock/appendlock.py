"""The one lock that orders appends, with figures of its own and a limit to waiting.

Whoever finds it taken waits; when one holder keeps it for longer than the limit, those who wait are
turned away with `BusyError`, so that callers slow down instead of piling up (RocketMQ's "page cache
busy", spec section 7.1).

An interrupt (Ctrl-C) may come between any two steps, so also between taking it and noting that it was
taken. So it knows itself whether this thread holds it: whoever is interrupted asks `is_owned`.
"""

import threading
import time
from collections.abc import Callable

from penstock.errors import BusyError

_MS = 1_000_000
_LOOK_AGAIN_S = 0.02
_PAUSES_S = (20e-6, 40e-6, 80e-6, 160e-6, 320e-6, 640e-6)


class AppendLock:
    """A lock that knows how long it is held and how often somebody had to wait."""

    __slots__ = (
        "_limit_ns", "_lock", "free", "is_owned", "longest_hold_ns", "now_ns", "refused", "since_ns",
        "take", "waits",
    )  # fmt: skip

    def __init__(self, limit_ms: int, now_ns: Callable[[], int]) -> None:
        self._lock = threading.RLock()
        # For the hot path, which does what `acquire` and `release` do without calling them.
        self.take = self._lock.acquire
        self.free = self._lock.release
        # What `threading.Condition` asks a lock as well.
        self.is_owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined] # not in the stubs
        self.now_ns = now_ns
        self._limit_ns = limit_ms * _MS
        # When it was taken; 0 while it is free.
        self.since_ns = 0
        self.longest_hold_ns = 0
        self.waits = 0
        self.refused = 0

    def refuse_within(self) -> None:
        """Raise if this very thread is within an append: a signal handler may not begin another."""
        if self.since_ns and self.is_owned():
            self.refused += 1
            raise BusyError("an append that this thread interrupted has been under way", 0)

    def acquire(self) -> None:
        """Take it; `BusyError` when one other holds it for longer than the limit."""
        if not self.take(blocking=False):
            self.wait()
        self.since_ns = self.now_ns()

    def wait(self) -> None:
        """Take it when it is free, or raise as `acquire` does.

        At first it is not slept on: whoever is woken with a lock has it before it has the interpreter's, so the one
        that runs finds it taken and sleeps in turn, and every append costs a switch of threads. But whoever only looks
        now and then may find it taken for ever, where its holders let others run only while they hold it.
        """
        self.waits += 1
        for pause_s in _PAUSES_S:
            if self.take(blocking=False):
                return
            time.sleep(pause_s)
        while not self._lock.acquire(timeout=_LOOK_AGAIN_S):
            since = self.since_ns
            held_ns = self.now_ns() - since if since else 0
            if held_ns > self._limit_ns:
                self.refused += 1
                raise BusyError("another append has been under way", held_ns // _MS)

    def release(self) -> None:
        """Give it back, and note how long it was held."""
        held_ns = self.now_ns() - self.since_ns
        self.longest_hold_ns = max(self.longest_hold_ns, held_ns)
        self.since_ns = 0
        self.free()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def stats(self) -> dict[str, int]:
        """Return how often somebody waited, or was turned away, and the longest hold in microseconds."""
        return {
            "waits": self.waits,
            "refused": self.refused,
            "longest_hold_us": self.longest_hold_ns // 1000,
        }
