"""Determines which segments are old: those not written for a number of hours (spec section 11.1)."""

import math
from collections.abc import Sequence

from penstock.contracts import SegmentInfo

HOUR_MS = 3_600_000


def check_hours(_instance: object, field: object, hours: float) -> None:
    """Raise `ValueError` if `hours` is not a duration; used as a validator of `attrs.field`."""
    if not (math.isfinite(hours) and hours >= 0):
        name = getattr(field, "name", "hours")
        raise ValueError(f"{name} is {hours}; it must be a number of hours, 0 or more")


def count_old(segments: Sequence[SegmentInfo], now_ms: int, reserved_hours: float) -> int:
    """Return how many of the oldest segments are old, up to the first that is not; never count the last one."""
    reserved_ms = reserved_hours * HOUR_MS
    count = 0
    for segment in segments[:-1]:
        if now_ms < segment.last_write_ms + reserved_ms:
            break
        count += 1
    return count
