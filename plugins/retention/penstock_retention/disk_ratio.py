"""The `disk-ratio` policy: deletes segments as the disk fills, refuses writes before it is full (spec section 11.2).

Three levels, in percent of the disk used, rounded up. Above the first, old segments are deleted at any hour. Above
the second, segments are deleted whatever their age. Above the third, writes are refused until the use is back at the
second. If the disk does not report its size, only old segments are deleted, at any hour.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from penstock.contracts import Context, DiskUse, RetentionPolicy, SegmentInfo, Vote, limits
from penstock_retention.aging import check_hours, count_old

_PERCENT = limits(1, 100)


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
            reason = f"{percent} % of the disk is used, over {options.forced_percent} %: segments of any age are deleted"
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
