"""Time, passed as an argument so that a test can control it; and a wall clock that does not follow a jump at once."""

import time

# A wall clock that moves by more than this against the monotonic clock has jumped; less is drift and correction.
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

    # Nanoseconds that never go back, for measuring short intervals. Not wrapped in a method: it is called twice a put.
    monotonic_ns = staticmethod(time.monotonic_ns)
    # Processor time of the calling thread in nanoseconds, which does not depend on how busy the machine is.
    thread_ns = staticmethod(time.thread_time_ns)


class SteadyTime:
    """Wall-clock time that accepts a jump only after the clock has kept the new time for a while.

    It is for decisions about deletion: one bad reading, or a clock that is set wrong and corrected, must not make
    everything old. Until a jump is accepted, time advances from the last accepted reading. Not thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._doubted_ms = clock.time_ms() - clock.monotonic_ms()
        self._since_ms = clock.monotonic_ms()

    @property
    def is_doubted(self) -> bool:
        """Whether the wall clock shows a jump that is not accepted yet."""
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
