"""The `age` policy: deletes segments that were not written for a time, at certain hours (spec section 11.1)."""

import time
from collections.abc import Sequence
from typing import ClassVar

import attrs

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock_retention.aging import HOUR_MS, check_hours, count_old

_HOURS = range(24)


def _check_delete_when(_instance: object, _field: object, text: str) -> None:
    for word in text.split(";"):
        if word.strip() != "*" and not (word.strip().isdigit() and int(word) in _HOURS):
            raise ValueError(
                f"delete_when is {text!r}; it must be hours 0 to 23 separated by ';', or '*'"
            )


@attrs.frozen(kw_only=True)
class AgeOptions:
    """Options of the age policy.

    Attributes:
        reserved_hours: how long a segment is kept after its last write.
        delete_when: the hours of the day, local time, at which segments are deleted; "*" for any.
    """

    reserved_hours: float = attrs.field(default=72.0, validator=check_hours)
    delete_when: str = attrs.field(default="04", validator=_check_delete_when)


class AgeRetention(RetentionPolicy):
    """Deletes old segments. Stateless."""

    name: ClassVar[str] = "age"
    Options: ClassVar[type] = AgeOptions

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Vote for the oldest segments that are expired, never the last one."""
        count, reason = self._count(segments, now_ms)
        ahead = sum(segment.is_ahead for segment in segments)
        doubt = f"; the file times of {ahead} are in the future, and do not count" if ahead else ""
        return Vote(count, reason + doubt)

    def _count(self, segments: Sequence[SegmentInfo], now_ms: int) -> tuple[int, str]:
        hours = self.options.reserved_hours
        count = count_old(segments, now_ms, hours)
        if not count:
            return 0, _reason_for_none(segments, now_ms, hours)
        if not self._is_delete_hour(now_ms):
            when = self.options.delete_when
            return (
                0,
                f"{count} not written for {hours:g} hours, but segments are deleted at {when} o'clock",
            )
        return count, f"not written for {hours:g} hours"

    def _is_delete_hour(self, now_ms: int) -> bool:
        hours = [word.strip() for word in self.options.delete_when.split(";")]
        hour = time.localtime(now_ms / 1000).tm_hour
        return "*" in hours or any(int(word) == hour for word in hours)


def _reason_for_none(segments: Sequence[SegmentInfo], now_ms: int, hours: float) -> str:
    if len(segments) <= 1:
        return "the last segment is the only one"
    age = max(now_ms - segments[0].last_write_ms, 0) / HOUR_MS
    return f"the oldest was written {age:.1f} hours ago; segments are kept for {hours:g} hours"
