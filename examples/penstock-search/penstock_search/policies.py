"""A minimal flush policy and a minimal retention policy."""

from collections.abc import Sequence

import attrs

from penstock import FlushPolicy, RetentionPolicy
from penstock.contracts import DiskUse, SegmentInfo, Vote


@attrs.frozen(kw_only=True)
class EveryOptions:
    """Options of the every policy.

    Attributes:
        bytes: number of waiting bytes that triggers a sync.
    """

    bytes: int = attrs.field(default=1_000_000, validator=attrs.validators.ge(1))


class EveryFlush(FlushPolicy):
    """Flushes when this number of bytes waits, in the thread of the put that reaches it."""

    name = "every"
    Options = EveryOptions

    def after_append(self, end_offset: int) -> None:
        """See `FlushPolicy`."""
        if end_offset - self.flusher.flushed_offset >= self.options.bytes:
            self.flusher.flush()


@attrs.frozen(kw_only=True)
class KeepLastOptions:
    """Options of the keep-last policy.

    Attributes:
        segments: how many of the newest segments are kept.
    """

    segments: int = attrs.field(default=10, validator=attrs.validators.ge(1))


class KeepLastRetention(RetentionPolicy):
    """Keeps the newest segments, whatever their age."""

    name = "keep-last"
    Options = KeepLastOptions

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """See `RetentionPolicy`."""
        keep = self.options.segments
        return Vote(max(len(segments) - keep, 0), f"only the newest {keep} segments are kept")
