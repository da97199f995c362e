"""Whether compressing data is faster than sending it as it is: decided by samples, per connection.

Sending a byte as it is takes `1 / sent` seconds. Compressing it takes `1 / zipped`, and sending what is left of it `ratio / sent`. So it pays
if `sent < zipped * (1 - ratio)`: on a slow line with text in the messages, not on a fast one, nor with bodies that are compressed already.
"""

import zlib
from collections.abc import Callable

from penstock_replicate.wire.frames import ZLIB_LEVEL

# Smaller data goes at once: it is what was just put.
SAMPLE_BYTES_MIN = 16 << 10
# Between two samples, in pieces of data.
_EVERY = 32
_SMOOTHING = 0.3
# Compressing must be faster by this factor, since it takes processor time from the puts.
_MARGIN = 1.3


class CompressionChoice:
    """Decides for one connection. Not thread-safe.

    Args:
        mode: "auto", "none" or "zlib".
        time_s: a clock that never goes back.
    """

    def __init__(self, mode: str, time_s: Callable[[], float]) -> None:
        self._mode, self._time_s = mode, time_s
        self._until_sample = 0
        self._pays = False
        self._sent_bytes_per_s = 0.0

    def is_to_try(self, size: int) -> bool:
        """Return whether the next data, of `size` bytes, is to be given to `zipped`."""
        if self._mode == "none" or size < SAMPLE_BYTES_MIN:
            return False
        if self._mode == "zlib" or self._pays:
            return True
        if not self._sent_bytes_per_s:
            return False
        self._until_sample -= 1
        return self._until_sample <= 0

    def zipped(self, data: bytes) -> bytes | None:
        """Return the compressed data; None if it is to be sent as it is. Lets other threads run meanwhile."""
        begin = self._time_s()
        small = zlib.compress(data, ZLIB_LEVEL)
        took = max(self._time_s() - begin, 1e-6)
        ratio = len(small) / len(data)
        if self._mode == "auto":
            self._until_sample = _EVERY
            gain = len(data) / took * (1 - ratio)
            self._pays = self._sent_bytes_per_s * _MARGIN < gain
            return small if self._pays else None
        return small if ratio < 1 else None

    def note_sent(self, size: int, seconds: float) -> None:
        """Note how long the line took for `size` bytes, with all waiting."""
        if size < SAMPLE_BYTES_MIN:
            return
        speed = size / max(seconds, 1e-6)
        known = self._sent_bytes_per_s or speed
        self._sent_bytes_per_s = known + _SMOOTHING * (speed - known)
