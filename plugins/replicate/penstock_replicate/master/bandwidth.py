"""A limit of bytes a second for all copies together."""

import asyncio
from collections.abc import Callable

# What may be sent at once after a pause.
_BURST_S = 0.25


class Bandwidth:
    """Lets bytes pass at a rate. What is sent at once may exceed what is there; who comes next waits for it.

    Args:
        bytes_per_s: the rate; 0 is no limit.
        time_s: a clock that never goes back.
    """

    def __init__(self, bytes_per_s: float, time_s: Callable[[], float]) -> None:
        self._bytes_per_s, self._time_s = bytes_per_s, time_s
        # When the bytes that have passed are paid for.
        self._free_at_s = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s > 0

    def delay_s(self, size: int) -> float:
        """Take `size` bytes; return how long to wait before they are sent."""
        if not self.is_limited:
            return 0.0
        now = self._time_s()
        begin = max(self._free_at_s, now - _BURST_S)
        self._free_at_s = begin + size / self._bytes_per_s
        return max(begin - now, 0.0)

    async def take(self, size: int) -> None:
        """Return when `size` bytes may be sent."""
        delay = self.delay_s(size)
        if delay:
            await asyncio.sleep(delay)
