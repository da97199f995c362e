"""Time, passed in, so that a test can own it."""

import time


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
