"""The `size` policy: deletes the oldest segments while the log is larger than a limit."""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote, limits

_MIB = 1 << 20


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
