"""Forecasts when each segment will be deleted, on the assumption that no more messages are put.

The policies are consulted for each hour ahead. Within an hour the retention runs are simulated, each of which
deletes at most ten segments. Disk use is the current use minus the segments forecast to be deleted by then.
Changes nothing.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.contracts import DiskUse, RetentionPolicy, SegmentInfo
from penstock.errors import ConfigError, OffsetError
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.retention.runner import SEGMENTS_A_ROUND_MAX, consult

# The policies are consulted for each hour, so a forecast without a limit would not return.
DAYS_MAX = 3660
_HOUR_MS = 3_600_000
# Attempts to list the segments while retention deletes some; more failures have another cause.
_LIST_TRIES = 100


class SegmentForecast(NamedTuple):
    """When and why one segment will be deleted, or why it is kept.

    Attributes:
        segment: the segment.
        at_ms: when it would be deleted, Unix milliseconds; None if it is kept for the whole forecast.
        reason: why it is deleted or kept.
        is_now: a retention run started now would delete it.
    """

    segment: SegmentInfo
    at_ms: int | None
    reason: str
    is_now: bool = False


class RetentionForecast:
    """Forecasts the retention of one store. With `is_foreign` another process may write the store meanwhile."""

    def __init__(
        self,
        log: SegmentedLog,
        make_policies: Callable[[], Sequence[RetentionPolicy]],
        files: Files,
        now_ms: Callable[[], int],
        *,
        interval_ms: int,
        is_foreign: bool,
    ) -> None:
        self._log = log
        self._make_policies = make_policies
        self._files = files
        self._now_ms = now_ms
        self._interval_ms = interval_ms
        self._is_foreign = is_foreign

    def forecast(self, days: float) -> list[SegmentForecast]:
        """Return a forecast for each segment, oldest first; raises `ConfigError` unless `days` is 0 to `DAYS_MAX`."""
        if not 0 <= days <= DAYS_MAX:
            raise ConfigError(f"days is {days}; it must be 0 to {DAYS_MAX}")
        now = self._now_ms()
        segments = self._present(now)
        policies = self._make_policies()
        use = DiskUse(*self._files.free_bytes(self._log.folder))
        found: list[SegmentForecast] = []
        reason = ""
        for hour_ms in _hours(now, now + int(days * 24 * _HOUR_MS)):
            for at_ms in range(hour_ms, hour_ms + _HOUR_MS, max(self._interval_ms, 1)):
                left = segments[len(found) :]
                freed = sum(departure.segment.size for departure in found)
                disk = DiskUse(max(use.used - freed, 0), use.usable + freed)
                count, reason, *_ = consult(policies, left, at_ms, disk)
                if not count:
                    break
                is_now = at_ms == now
                going = left[: min(count, SEGMENTS_A_ROUND_MAX)]
                found += [SegmentForecast(segment, at_ms, reason, is_now) for segment in going]
        return found + [
            self._keep_forecast(segments, at, reason) for at in range(len(found), len(segments))
        ]

    def _present(self, now_ms: int) -> list[SegmentInfo]:
        """Return the segments that hold records, without preallocated files."""
        segments: list[SegmentInfo] = []
        for _ in range(_LIST_TRIES):
            # Retention may delete a segment while they are listed; the list is then read again.
            with contextlib.suppress(FileNotFoundError):
                if self._is_foreign:
                    self._log.refresh()
                segments = self._log.infos(now_ms)
                break
        while len(segments) > 1 and not self._has_records(segments[-1]):
            segments.pop()
        return segments

    def _has_records(self, segment: SegmentInfo) -> bool:
        try:
            return any(self._log.read(segment.base_offset, 8))
        except OffsetError:
            return False

    @staticmethod
    def _keep_forecast(segments: Sequence[SegmentInfo], at: int, reason: str) -> SegmentForecast:
        is_last = at == len(segments) - 1
        return SegmentForecast(
            segments[at], None, "the last segment is never deleted" if is_last else reason
        )


def _hours(start_ms: int, stop_ms: int) -> Iterator[int]:
    """Yield the start, then every full hour of local time: policies with a delete hour change their vote there."""
    at_ms = start_ms
    while at_ms <= stop_ms:
        yield at_ms
        local = time.localtime(at_ms // 1000)
        at_ms += _HOUR_MS - (local.tm_min * 60 + local.tm_sec) * 1000 - at_ms % 1000
