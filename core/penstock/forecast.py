"""When each segment would go: the policies are asked hour by hour, as if nothing else were put.

The use of the disk is taken as it is now, less what would have gone by then. Changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo
from penstock.files import Files
from penstock.log import SegmentedLog
from penstock.retention import largest

_HOUR_MS = 3_600_000


class Departure(NamedTuple):
    """What becomes of a segment.

    Attributes:
        segment: which one.
        at_ms: when it would go, Unix milliseconds; None if it is kept for as long as was looked ahead.
        reason: why it goes, or why it stays.
        is_now: it would go in a round that ran now.
    """

    segment: SegmentInfo
    at_ms: int | None
    reason: str
    is_now: bool = False


class Outlook:
    """Looks ahead for one store."""

    def __init__(
        self,
        log: SegmentedLog,
        make_policies: Callable[[], Sequence[RetentionPolicy]],
        files: Files,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._make_policies = make_policies
        self._files = files
        self._now_ms = now_ms

    def forecast(self, days: float) -> list[Departure]:
        """Return what becomes of each segment within so many days, oldest first."""
        segments = self._log.infos()
        policies = self._make_policies()
        used, usable = self._files.free_bytes(self._log.folder)
        now = self._now_ms()
        # On the hour, as policies that know hours of the day change then.
        first = now - now % _HOUR_MS + _HOUR_MS
        times = [now, *range(first, now + int(days * 24 * _HOUR_MS) + 1, _HOUR_MS)]
        found: list[Departure] = []
        reason = "no policy is configured"
        for time_ms in times:
            left = segments[len(found) :]
            freed = sum(departure.segment.size for departure in found)
            disk = DiskUse(max(used - freed, 0), usable + freed)
            vote = largest([policy.vote(left, time_ms, disk) for policy in policies])
            count = max(min(vote.expired_count, len(left) - 1), 0)
            is_now = time_ms == now
            found += [Departure(segment, time_ms, vote.reason, is_now) for segment in left[:count]]
            reason = vote.reason
        return found + [self._kept(segments, at, reason) for at in range(len(found), len(segments))]

    @staticmethod
    def _kept(segments: Sequence[SegmentInfo], at: int, reason: str) -> Departure:
        is_last = at == len(segments) - 1
        return Departure(segments[at], None, "the last segment never goes" if is_last else reason)
