"""The log is kept below a size: the oldest segments go while it is larger."""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo, Vote

_MIB = 1 << 20


@attrs.frozen(kw_only=True)
class SizeOptions:
    """Options of the size policy.

    Attributes:
        bytes_max: so many bytes of segments are kept; the last segment always is.
    """

    bytes_max: int = attrs.field(default=10 << 30, validator=attrs.validators.ge(0))


class SizeRetention(RetentionPolicy):
    """Lets the oldest segments go while the log is too large. Holds no state."""

    name: ClassVar[str] = "size"
    Options: ClassVar[type] = SizeOptions

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Count the oldest segments that are too many."""
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
            f"the log has {total / _MIB:,.6g} MiB, {relation} the {limit / _MIB:,.6g} MiB kept",
        )
