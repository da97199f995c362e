"""Time, passed in, so that a test can own it; and a wall clock that does not follow a jump at once."""

import time

# A clock that moves by more than this against the monotonic one has jumped; less is drift and correction.
JUMP_MS = 10 * 60 * 1000
BELIEVED_AFTER_MS = 60 * 60 * 1000


class Clock:
    """The machine's clock. Safe from any thread."""

    def time_ms(self) -> int:
        """Return the wall-clock time in Unix milliseconds; it may jump either way."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never go back, for measuring how long something took."""
        return time.monotonic_ns() // 1_000_000

    # Nanoseconds that never go back, for measuring short stretches. No method of its own: twice a put.
    monotonic_ns = staticmethod(time.monotonic_ns)
    # Nanoseconds of a processor that the calling thread has used, for what a stretch costs however busy the machine is.
    thread_ns = staticmethod(time.thread_time_ns)


class SteadyTime:
    """Wall-clock time that believes a jump only when the clock has kept to it for a while.

    For deciding what may be deleted: one bad reading, a clock set wrong and right again, must not make
    everything old. Meanwhile time goes on from the last reading that was believed. Not thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._doubted_ms = clock.time_ms() - clock.monotonic_ms()
        self._since_ms = clock.monotonic_ms()

    @property
    def is_doubted(self) -> bool:
        """Whether the wall clock says something else."""
        return abs(self._doubted_ms - self._ahead_ms) > JUMP_MS

    def time_ms(self) -> int:
        """Return the time in Unix milliseconds."""
        steady_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.time_ms() - steady_ms
        if abs(ahead_ms - self._doubted_ms) > JUMP_MS:
            self._since_ms = steady_ms
        self._doubted_ms = ahead_ms
        if not self.is_doubted or steady_ms - self._since_ms >= BELIEVED_AFTER_MS:
            self._ahead_ms = ahead_ms
        return steady_ms + self._ahead_ms
