"""Deletes expired segments: consults the policies, then deletes the oldest segments one by one.

A segment is deleted only if it is not the last, it and its entries in queues and index are durable, no plugin
vetoes the deletion, and no reader holds a lease on it. Entries that a power cut takes are made from the log again, so a
queue whose records are deleted must not lose its last one: it would begin at 0. A lease held longer than FORCE_AFTER_MS
is ignored. Queues and index are trimmed afterwards. Source: spec sections 9.5 and 11.

Invariants:
    * The order of a deletion: the minimum offsets of the queues move, then that of the log; then readers get no new
      lease; then the file is deleted, and derived files last. So data that a caller finds missing is always below
      the bounds that the caller reads afterwards, and a crash in between never leaves records without their
      queue entries.
    * Segments are deleted in order: while one cannot be deleted, or is still leased, no later one
      is deleted, so the log never gets a hole.
    * A deletion that one run began is completed by the next run, whatever the policies answer by then: such a
      segment is already closed to readers.
    * One wrong reading of the clock deletes nothing: see `clock.SteadyTime`.
    * A policy that raises has no vote, and refuses puts if its last vote did; the error stops neither retention nor
      the store.
"""

import contextlib
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.contracts import (
    DiskUse,
    Dispatcher,
    QueueIndex,
    RetentionPolicy,
    SegmentInfo,
    Vote,
)
from penstock.errors import ConfigError, OffsetError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.log.commit_log import CommitLog
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import BELIEVED_AFTER_MS, Clock, SteadyTime

logger = get_logger(__name__)

FORCE_AFTER_MS = 120_000
# A run waits for readers of a segment: the number of tries, and the pause between them.
_TRIES_MAX, _TRY_AGAIN_S = 20, 0.01
# The limit of one run, so that a wrong clock cannot empty a store at once.
SEGMENTS_A_ROUND_MAX = 10


class RetentionDecision(NamedTuple):
    """The combined vote of all policies.

    Attributes:
        going: how many of the oldest segments may be deleted; the last segment is never counted.
        reason: why segments are deleted, or why none is.
        refusal: why puts are refused; None if they are accepted.
        failed: the exceptions of the policies that raised, by policy name.
        voters: names of the policies with the largest vote.
        refusals: why puts are refused, by the policies that do; a policy that raises does what it did before.
    """

    going: int
    reason: str
    refusal: str | None
    failed: dict[str, Exception]
    voters: tuple[str, ...] = ()
    refusals: Mapping[str, str] = MappingProxyType({})


class _Choice(NamedTuple):
    """The number of oldest segments to delete, why, and on whose request."""

    going: int
    reason: str
    who: str


class _Deletion(NamedTuple):
    """A segment whose deletion has begun; `segment` is set once it was removed from the log."""

    info: SegmentInfo
    reason: str
    who: str
    segment: Segment | None = None


class Keeper(Protocol):
    """What retention calls of the store: see `Engine`."""

    def safe_offset(self) -> int:
        """Return the log offset below which everything is durable: records, and their entries in queues and index."""

    def make_safe(self) -> None:
        """Advance the safe offset to the log's end."""

    def may_delete(self, info: SegmentInfo, reason: str) -> bool:
        """Return whether no plugin vetoes the deletion of a segment."""

    def deleted(self, info: SegmentInfo, reason: str) -> None:
        """Report that a segment was deleted."""


class Retention:
    """Runs the retention policies of one store. Safe from any thread: one run at a time."""

    def __init__(
        self,
        keeper: Keeper,
        log: CommitLog,
        policies: Sequence[RetentionPolicy],
        dispatchers: Sequence[Dispatcher],
        *,
        files: Files,
        clock: Clock,
        pause_ms: int,
    ) -> None:
        self._keeper = keeper
        self._commit_log, self._log = log, log.log
        self._policies = policies
        self._dispatchers = dispatchers
        self._files = files
        self._time = SteadyTime(clock)
        self._monotonic_ms = clock.monotonic_ms
        self._pause_s = pause_ms / 1000
        self._deleting: _Deletion | None = None
        self._trimmed_to = self._log.min_offset
        self._failing: set[str] = set()
        self._refusals: Mapping[str, str] = {}
        # The names of segments whose file has a time in the future.
        self._ahead: set[str] = set()
        self._stopping = threading.Event()
        # Reentrant, so that a plugin may close the store from a hook.
        self._one_at_a_time = threading.RLock()

    def run(self) -> int:
        """Delete expired segments; returns how many were deleted."""
        with self._one_at_a_time:
            gone = self._run_patiently(self._choose_by_vote, SEGMENTS_A_ROUND_MAX)
            if gone and self._commit_log.refusal is not None:
                # There may be room again: vote again, so that puts need not wait for the next run.
                self._choose_by_vote()
            return gone

    def delete_before(self, log_offset: int, time_ms: int) -> int:
        """Delete segments that end at or before a log offset or were last written before a time; returns how many."""

        def count() -> _Choice:
            # Counted within the run: segments that another run deleted meanwhile must not count again.
            by_offset = self._log.count_before_offset(log_offset)
            going = max(by_offset, self._log.count_before_time(time_ms, self._steady_now_ms()))
            return _Choice(going, "requested by the caller", "a call of discard_before")

        with self._one_at_a_time:
            return self._run_patiently(count, sys.maxsize)

    def is_stopped(self, within_s: float) -> bool:
        """Wait for the end of all runs, within a time; return whether it has come."""
        return self._stopping.wait(within_s)

    def stop(self, limit_s: float = -1) -> None:
        """Stop the current run, in whatever thread, and wait for it to end; later runs do nothing."""
        self._stopping.set()
        # A plugin that hangs in a run must not make the close hang: close waits for its worker, within a limit.
        if self._one_at_a_time.acquire(timeout=limit_s):
            self._one_at_a_time.release()

    def _choose_by_vote(self) -> _Choice:
        """Consult the policies, log new failures, and return what they vote for."""
        disk = DiskUse(*self._files.free_bytes(self._log.folder))
        now_ms = self._steady_now_ms()
        segments = self._log.infos(now_ms)
        if self._policies:
            self._warn_of_future(segments)
        verdict = consult(self._policies, segments, now_ms, disk, self._refusals)
        for name in verdict.failed.keys() - self._failing:
            logger.error(
                "retention policy %r failed; its vote is ignored until it succeeds again, but puts stay refused if it "
                "refused them; other policies are not affected",
                name,
                exc_info=verdict.failed[name],
            )
        self._failing = set(verdict.failed)
        self._refusals = verdict.refusals
        self._commit_log.refuse(verdict.refusal)
        return _Choice(verdict.going, verdict.reason, "policy " + ", ".join(verdict.voters))

    def _warn_of_future(self, segments: Sequence[SegmentInfo]) -> None:
        """Log a warning for each segment whose file has a time in the future, once."""
        ahead = {info.path.name for info in segments if info.is_ahead}
        if ahead - self._ahead:
            logger.warning(
                "the times of %d segment files are in the future, of %s first: retention by age goes by the times of "
                "the segments after them, or keeps them if there are none. Check the clock",
                len(ahead), min(ahead),
            )  # fmt: skip
        self._ahead = ahead

    def _steady_now_ms(self) -> int:
        before = self._time.is_doubted
        now_ms = self._time.time_ms()
        if self._time.is_doubted and not before:
            logger.warning(
                "the clock has jumped; retention uses the time from before the jump until the clock has been "
                "steady for %d minutes", BELIEVED_AFTER_MS // 60_000,
            )  # fmt: skip
        return now_ms

    def _run_patiently(self, choose: Callable[[], _Choice], most: int) -> int:
        """Like `_run_once`, and wait for the readers of a segment; possibly only Penstock's own threads read it."""
        gone = self._run_once(choose, most)
        for _ in range(_TRIES_MAX):
            if self._deleting is None or self._stopping.wait(_TRY_AGAIN_S):
                break
            gone += self._run_once(choose, most - gone)
        return gone

    def _run_once(self, choose: Callable[[], _Choice], most: int) -> int:
        """Complete a deletion that has begun, delete what `choose` returns, then trim; returns the number deleted."""
        if self._stopping.is_set():
            return 0
        try:
            gone = int(self._finish_deletion())
            choice = choose()
            if self._deleting is None:
                gone += self._delete_chosen(choice, most - gone, paused=not gone)
            return gone
        finally:
            self._trim()

    def _delete_chosen(self, choice: _Choice, most: int, *, paused: bool) -> int:
        """Delete at most `most` of the chosen segments, with a pause before each; returns how many."""
        gone = 0
        for info in self._log.infos()[:-1][: min(choice.going, most)]:
            if not paused and self._stopping.wait(self._pause_s):
                break
            paused = False
            if info.base_offset + info.size > self._keeper.safe_offset():
                # Not before it is needed: a failure must not keep segments that are safe.
                self._keeper.make_safe()
            if not self._delete_one(info, choice):
                break
            gone += 1
        return gone

    def _delete_one(self, info: SegmentInfo, choice: _Choice) -> bool:
        is_safe = info.base_offset + info.size <= self._keeper.safe_offset()
        if not is_safe or not self._keeper.may_delete(info, choice.reason):
            return False
        if self._stopping.is_set() or self._log.min_offset != info.base_offset:
            # A plugin closed the store, or started its own run.
            return False
        self._deleting = _Deletion(info, choice.reason, choice.who)
        return self._finish_deletion()

    def _finish_deletion(self) -> bool:
        """Continue the deletion that has begun, if any; returns whether the segment was deleted."""
        if self._deleting is None:
            return False
        info, reason, who, segment = self._deleting
        if segment is None:
            self._move_bounds(info.base_offset + info.size)
            segment = self._log.retire_first(info.base_offset, self._monotonic_ms(), FORCE_AFTER_MS)
            if segment is None:
                logger.info(
                    "segment %s is still being read; the next retention run deletes it",
                    info.path.name,
                )
                return False
            if segment.lease.was_forced:
                logger.warning(
                    "segment %s is deleted although a reader has held it for too long",
                    info.path.name,
                )
            self._deleting = self._deleting._replace(segment=segment)
        self._discard(segment)
        self._deleting = None
        logger.warning(
            "deleted segment %s, log offsets %d to %d, on request of %s: %s",
            info.path, info.base_offset, info.base_offset + info.size, who, reason,
        )  # fmt: skip
        self._keeper.deleted(info, reason)
        return True

    def _discard(self, segment: Segment) -> None:
        if self._files.exists(segment.path):
            self._commit_log.tail.allocator.discard(segment.path, in_use=segment.lease.was_forced)
        else:
            # An earlier try took the name away and failed after that.
            self._files.sync_folder(segment.path.parent)

    def _move_bounds(self, low: int) -> None:
        for dispatcher in self._dispatchers:
            if isinstance(dispatcher, QueueIndex):
                try:
                    dispatcher.move_min(low)
                except Exception:
                    logger.exception(
                        "the minimum offsets of %s could not be moved; the segment is deleted nevertheless",
                        dispatcher.name,
                    )

    def _trim(self) -> None:
        """Trim all dispatchers to the log's first segment, if it has changed."""
        # Not the log's minimum offset: a segment with a lease keeps its records and entries until it is deleted.
        segments = self._log.segments
        low = segments[0].base_offset if segments else 0
        if low <= self._trimmed_to:
            return
        failed = False
        for dispatcher in self._dispatchers:
            try:
                dispatcher.trim(low)
            except Exception:
                failed = True
                logger.exception(
                    "%s could not be trimmed; the log is not affected, and the next retention run retries it",
                    dispatcher.name,
                )
        if not failed:
            self._trimmed_to = low


def consult(
    policies: Sequence[RetentionPolicy],
    segments: Sequence[SegmentInfo],
    now_ms: int,
    disk: DiskUse,
    refusals: Mapping[str, str] = MappingProxyType({}),
) -> RetentionDecision:
    """Return the combined vote: the largest count applies, and any policy may refuse writes.

    `refusals` are those of the decision before.
    """
    votes: list[Vote] = []
    failed: dict[str, Exception] = {}
    refusing: dict[str, str] = {}
    most = max(len(segments) - 1, 0)
    for policy in policies:
        try:
            count, reason, refuses = policy.vote(segments, now_ms, disk)
            # A negative count would select segments from the other end of the list.
            votes.append(Vote(min(max(int(count), 0), most), reason, refuses))
            if refuses:
                refusing[policy.name] = str(reason)
        except Exception as error:
            failed[policy.name] = error
            votes.append(Vote(0, f"policy {policy.name!r} failed: {error!r}"))
            if policy.name in refusals:
                refusing[policy.name] = refusals[policy.name]
    if not votes:
        return RetentionDecision(0, "no policy is configured", None, failed)
    refusal = next(iter(refusing.values()), None)
    going = max(vote.expired_count for vote in votes)
    # If no segment is deleted, the reason is that of every policy.
    largest = [
        (policy.name, vote.reason)
        for policy, vote in zip(policies, votes, strict=True)
        if vote.expired_count == going
    ]
    reason = "; ".join(str(reason) for _, reason in largest)
    return RetentionDecision(going, reason, refusal, failed, tuple(name for name, _ in largest), refusing)  # fmt: skip


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
    """Forecasts when each segment of a store will be deleted if no more messages are put. Changes nothing.

    The policies are consulted for the first and the last run of each hour ahead. If one of them deletes something, the
    runs of the hour are simulated from the first that does; each deletes at most ten segments. Disk use is the current
    use minus the segments forecast to be deleted by then. With `is_foreign` another process may write the store
    meanwhile.
    """

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

        def consulted(at_ms: int) -> RetentionDecision:
            left = segments[len(found) :]
            freed = sum(departure.segment.size for departure in found)
            disk = DiskUse(max(use.used - freed, 0), use.usable + freed)
            return consult(policies, left, at_ms, disk)

        for hour_ms, end_ms in _hours(now, now + int(days * 24 * _HOUR_MS)):
            runs = range(hour_ms, end_ms, max(self._interval_ms, 1))
            at = 0
            while at < len(runs):
                decision = consulted(runs[at])
                if not decision.going and consulted(runs[-1]).going:
                    # A segment expires within the hour, and goes at the first run after that.
                    at = bisect_left(
                        runs, 1, at, len(runs) - 1, key=lambda at_ms: consulted(at_ms).going
                    )
                    decision = consulted(runs[at])
                reason = decision.reason
                if not decision.going:
                    break
                going = segments[len(found) :][: min(decision.going, SEGMENTS_A_ROUND_MAX)]
                found += [
                    SegmentForecast(each, runs[at], reason, runs[at] == now) for each in going
                ]
                at += 1
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


def _hours(start_ms: int, stop_ms: int) -> Iterator[tuple[int, int]]:
    """Yield where each hour of local time begins, the first at the start, and ends: delete hours change votes there."""
    at_ms = start_ms
    while at_ms <= stop_ms:
        local = time.localtime(at_ms // 1000)
        end_ms = at_ms + _HOUR_MS - (local.tm_min * 60 + local.tm_sec) * 1000 - at_ms % 1000
        yield at_ms, end_ms
        at_ms = end_ms
