"""Segments go when they have not been written for so long, at certain hours (spec section 11.1)."""

import time
from collections.abc import Sequence
from typing import ClassVar

import attrs

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote

_HOUR_MS = 3_600_000
_HOURS = range(24)


def _check_hours(_instance: object, _field: object, text: str) -> None:
    for word in text.split(";"):
        if word.strip() != "*" and not (word.strip().isdigit() and int(word) in _HOURS):
            raise ValueError(
                f"delete_when is {text!r}; it must be hours 0 to 23 parted by ';', or '*'"
            )


@attrs.frozen(kw_only=True)
class AgeOptions:
    """Options of the age policy.

    Attributes:
        reserved_hours: how long after its last write a segment is kept.
        delete_when: the hours of the day, local time, at which segments go; "*" for any.
    """

    reserved_hours: float = attrs.field(default=72.0, validator=attrs.validators.ge(0))
    delete_when: str = attrs.field(default="04", validator=_check_hours)


class AgeRetention(RetentionPolicy):
    """Lets old segments go. Holds no state."""

    name: ClassVar[str] = "age"
    Options: ClassVar[type] = AgeOptions

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Count the oldest segments that are expired; the last one never is."""
        if not self._is_hour(now_ms):
            return Vote(0, f"it is not {self.options.delete_when} o'clock")
        reserved_ms = int(self.options.reserved_hours * _HOUR_MS)
        count = 0
        for segment in segments[:-1]:
            if now_ms < segment.last_write_ms + reserved_ms:
                break
            count += 1
        return Vote(count, f"not written for {self.options.reserved_hours:g} hours")

    def _is_hour(self, now_ms: int) -> bool:
        hours = [word.strip() for word in self.options.delete_when.split(";")]
        hour = time.localtime(now_ms / 1000).tm_hour
        return "*" in hours or any(int(word) == hour for word in hours)
