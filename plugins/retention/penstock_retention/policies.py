"""The built-in retention policies (spec sections 11.1 and 11.2).

* `age`: deletes segments that were not written for a time, at certain hours.
* `size`: deletes the oldest segments while the log is larger than a limit.
* `disk-ratio`: deletes segments as the disk fills, refuses writes before it is full. Three levels, in percent of the
  disk used, rounded up. Above the first, old segments are deleted at any hour. Above the second, segments are deleted
  whatever their age. Above the third, writes are refused until the use is back at the second. If the disk does not
  report its size, only old segments are deleted, at any hour.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from penstock.contracts import Context, DiskUse, RetentionPolicy, SegmentInfo, Vote, limits

HOUR_MS = 3_600_000
_HOURS = range(24)
_MIB = 1 << 20
_PERCENT = limits(1, 100)


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


def _check_delete_when(_instance: object, _field: object, text: str) -> None:
    for word in text.split(";"):
        if word.strip() != "*" and not (word.strip().isdecimal() and int(word) in _HOURS):
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


@attrs.frozen(kw_only=True)
class SizeOptions:
    """Options of the size policy.

    Attributes:
        bytes_max: maximum size of the segments kept; the last segment is always kept.
    """

    bytes_max: int = attrs.field(default=10 << 30, validator=limits(0, (1 << 63) - 1))


class SizeRetention(RetentionPolicy):
    """Deletes the oldest segments while the log is too large. Stateless."""

    name: ClassVar[str] = "size"
    Options: ClassVar[type] = SizeOptions

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Vote for the oldest segments that exceed the limit."""
        limit = self.options.bytes_max
        total = left = sum(segment.size for segment in segments)
        count = 0
        for segment in segments[:-1]:
            if left <= limit:
                break
            left -= segment.size
            count += 1
        relation = "over" if total > limit else "within"
        return Vote(
            count,
            f"the log has {total / _MIB:,.6g} MiB, {relation} the limit of {limit / _MIB:,.6g} MiB",
        )


@attrs.frozen(kw_only=True)
class DiskRatioOptions:
    """Options of the disk-ratio policy.

    Attributes:
        early_percent: above this, segments older than `reserved_hours` are deleted at any hour.
        forced_percent: above this, segments are deleted whatever their age; writing resumes at or below it.
        refuse_percent: above this, writes are refused as well.
        reserved_hours: how long after its last write a segment counts as old.
    """

    early_percent: int = attrs.field(default=75, validator=_PERCENT)
    forced_percent: int = attrs.field(default=85, validator=_PERCENT)
    refuse_percent: int = attrs.field(default=90, validator=_PERCENT)
    reserved_hours: float = attrs.field(default=72.0, validator=check_hours)

    def __attrs_post_init__(self) -> None:
        if not self.early_percent <= self.forced_percent <= self.refuse_percent:
            raise ValueError(
                f"early_percent {self.early_percent}, forced_percent {self.forced_percent} and "
                f"refuse_percent {self.refuse_percent} must be in ascending order"
            )


class DiskRatioRetention(RetentionPolicy):
    """Frees space as the disk fills. Remembers whether it refuses writes; called by one retention run at a time."""

    name: ClassVar[str] = "disk-ratio"
    Options: ClassVar[type] = DiskRatioOptions
    capabilities: ClassVar[frozenset[str]] = frozenset({"refuses-writes"})

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self._refuses = False

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Vote for the segments to delete at the present use of the disk."""
        options = self.options
        percent = _percent(disk)
        if percent is None:
            self._refuses = False
            count = count_old(segments, now_ms, options.reserved_hours)
            old = f"segments not written for {options.reserved_hours:g} hours"
            return Vote(count, f"the disk does not report its size: {old} are deleted at any hour")
        if percent > options.refuse_percent:
            self._refuses = True
        elif percent <= options.forced_percent:
            self._refuses = False
        if percent > options.forced_percent:
            limit = options.forced_percent
            reason = f"{percent} % of the disk is used, over {limit} %: segments of any age are deleted"  # fmt: skip
            return Vote(max(len(segments) - 1, 0), reason, self._refuses)
        if percent > options.early_percent:
            count = count_old(segments, now_ms, options.reserved_hours)
            reason = (
                f"{percent} % of the disk is used, over {options.early_percent} %: segments not "
                f"written for {options.reserved_hours:g} hours are deleted at any hour"
            )
            return Vote(count, reason, self._refuses)
        return Vote(0, f"{percent} % of the disk is used, within {options.early_percent} %")


def _percent(disk: DiskUse) -> int | None:
    """Return used / (used + usable) in whole percent, rounded up; None if both are 0."""
    whole = disk.used + disk.usable
    return -(-disk.used * 100 // whole) if whole else None
