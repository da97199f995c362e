"""Taking away what may go: asks the policies, then lets the oldest segments go one by one.

A segment goes only if it is not the last, is durable, was dispatched everywhere, no plugin keeps it, and
no reader holds it; a hold that outlasts the interval is passed over. Queues and index are trimmed after.
Source: spec sections 9.5 and 11.

Invariants:
    * First the bounds move, those of the queues before the log's; then no reader is given a hold any more; then
      the file goes, and derived files after it. So whatever a caller finds missing lies below the bounds that it
      asks for afterwards, and a crash between never leaves records without their queue entries.
    * Segments leave the disk in order: while one cannot be removed, or is still held, no later one
      goes, so the log never gets a hole.
    * What a round began the next one ends, whatever the policies say by then: such a segment is closed
      to readers already.
    * One bad reading of the clock deletes nothing: see `clock.SteadyTime`.
    * A policy that raises has no say; it neither ends retention nor stops the store.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.contracts import (
    Allocator,
    DiskUse,
    Dispatcher,
    QueueIndex,
    RetentionPolicy,
    SegmentInfo,
    Vote,
)
from penstock.escape import get_logger
from penstock.files import Files
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.runtime.clock import BELIEVED_AFTER_MS, Clock, SteadyTime

logger = get_logger(__name__)

FORCE_AFTER_MS = 120_000
# Who asks for segments to go waits so often, and so long each time, for those who look at one.
_TRIES_MAX, _TRY_AGAIN_S = 20, 0.01
# Never more in one round, so that a wrong clock cannot empty a store at once.
SEGMENTS_A_ROUND_MAX = 10


class RetentionDecision(NamedTuple):
    """What all policies together ask for.

    Attributes:
        going: how many of the oldest segments may go, without the last one.
        reason: why, or why none.
        refusal: why no message may be put; None if messages may.
        failed: what policies raised that could not say anything, by name.
        voters: names of the policies whose vote that is.
    """

    going: int
    reason: str
    refusal: str | None
    failed: dict[str, Exception]
    voters: tuple[str, ...] = ()


class _Choice(NamedTuple):
    """How many of the oldest segments are to go, why, and who asks for it."""

    going: int
    reason: str
    who: str


class _Leaving(NamedTuple):
    """A segment that is on its way out; `segment` is there once it has left the log."""

    info: SegmentInfo
    reason: str
    who: str
    segment: Segment | None = None


class Retention:
    """Runs the retention policies of one store. Safe from any thread: one round at a time."""

    def __init__(
        self,
        log: SegmentedLog,
        policies: Sequence[RetentionPolicy],
        dispatchers: Sequence[Dispatcher],
        allocator: Allocator,
        *,
        files: Files,
        clock: Clock,
        pause_ms: int,
    ) -> None:
        self._log = log
        self._policies = policies
        self._dispatchers = dispatchers
        self._allocator = allocator
        self._files = files
        self._time = SteadyTime(clock)
        self._monotonic_ms = clock.monotonic_ms
        self._pause_s = pause_ms / 1000
        # Set by the engine. Below the safe offset all is durable and dispatched; `make_safe` moves it on.
        self.safe_offset: Callable[[], int] = lambda: 0
        self.make_safe: Callable[[], None] = lambda: None
        # Whether every plugin lets a segment go; whom to tell when it is gone.
        self.on_expired: Callable[[SegmentInfo, str], bool] = lambda _info, _reason: True
        self.on_deleted: Callable[[SegmentInfo, str], None] = lambda _info, _reason: None
        # Why no message may be put, whenever that changes.
        self.on_refusal: Callable[[str | None], None] = lambda _reason: None
        self._refusal: str | None = None
        self._leaving: _Leaving | None = None
        self._trimmed_to = log.min_offset
        self._failing: set[str] = set()
        self._stopping = threading.Event()
        # Reentrant, so that a plugin may close the store from a hook.
        self._one_at_a_time = threading.RLock()

    @property
    def refusal(self) -> str | None:
        """Why no message may be put; None if messages may."""
        return self._refusal

    @refusal.setter
    def refusal(self, reason: str | None) -> None:
        self._refusal = reason
        self.on_refusal(reason)

    def run(self) -> int:
        """Let expired segments go; returns how many went."""
        with self._one_at_a_time:
            gone = self._round(self._voted, SEGMENTS_A_ROUND_MAX)
            if gone and self.refusal is not None:
                # There may be room again: whoever puts need not wait for the next round.
                self._voted()
            return gone

    def let_go_before(self, log_offset: int, time_ms: int, reason: str) -> int:
        """Let go of what lies wholly before a log offset or was last written before a time."""

        def count() -> _Choice:
            # Asked within the round: what another one took meanwhile must not count again.
            by_offset = self._log.count_before_offset(log_offset)
            going = max(by_offset, self._log.count_before_time(time_ms))
            return _Choice(going, reason, "a call of discard_before")

        with self._one_at_a_time:
            gone = self._round(count, sys.maxsize)
            for _ in range(_TRIES_MAX):
                if self._leaving is None or self._stopping.wait(_TRY_AGAIN_S):
                    break
                # Somebody looks at a segment, for a moment perhaps, as our own threads do.
                gone += self._round(count, sys.maxsize)
            return gone

    def stop(self, limit_s: float = -1) -> None:
        """End a round that is under way, in whatever thread, and wait for it; later ones do nothing."""
        self._stopping.set()
        # A plugin that hangs in a round must not make the close hang: it waits for its worker, within a limit.
        if self._one_at_a_time.acquire(timeout=limit_s):
            self._one_at_a_time.release()

    def _voted(self) -> _Choice:
        disk = DiskUse(*self._files.free_bytes(self._log.folder))
        verdict = consult(self._policies, self._log.infos(), self._believed_ms(), disk)
        for name in verdict.failed.keys() - self._failing:
            logger.error(
                "retention policy %r failed and has no say until it no longer does",
                name,
                exc_info=verdict.failed[name],
            )
        self._failing = set(verdict.failed)
        self.refusal = verdict.refusal
        return _Choice(verdict.going, verdict.reason, "policy " + ", ".join(verdict.voters))

    def _believed_ms(self) -> int:
        before = self._time.is_doubted
        now_ms = self._time.time_ms()
        if self._time.is_doubted and not before:
            logger.warning(
                "the clock has jumped; retention goes by the old time until it has kept to the new one for "
                "%d minutes", BELIEVED_AFTER_MS // 60_000,
            )  # fmt: skip
        return now_ms

    def _round(self, choose: Callable[[], _Choice], most: int) -> int:
        if self._stopping.is_set():
            return 0
        try:
            gone = int(self._go_on())
            choice = choose()
            if self._leaving is None:
                gone += self._let_go(choice, most - gone, paused=not gone)
            return gone
        finally:
            self._trim()

    def _let_go(self, choice: _Choice, most: int, *, paused: bool) -> int:
        going = self._log.infos()[:-1][: min(choice.going, most)]
        if going and going[-1].base_offset + going[-1].size > self.safe_offset():
            # Under a policy that never syncs nothing else would make it durable.
            self.make_safe()
        gone = 0
        for info in going:
            if not paused and self._stopping.wait(self._pause_s):
                break
            paused = False
            if not self._let_one_go(info, choice):
                break
            gone += 1
        return gone

    def _let_one_go(self, info: SegmentInfo, choice: _Choice) -> bool:
        is_safe = info.base_offset + info.size <= self.safe_offset()
        if not is_safe or not self.on_expired(info, choice.reason):
            return False
        if self._stopping.is_set() or self._log.min_offset != info.base_offset:
            # A plugin closed the store, or started a round of its own.
            return False
        self._leaving = _Leaving(info, choice.reason, choice.who)
        return self._go_on()

    def _go_on(self) -> bool:
        """Take the segment that is leaving a step further; says whether it is gone for good."""
        if self._leaving is None:
            return False
        info, reason, who, segment = self._leaving
        if segment is None:
            self._move_bounds(info.base_offset + info.size)
            segment = self._log.retire_first(self._monotonic_ms(), FORCE_AFTER_MS)
            if segment is None:
                logger.info("segment %s is still being read; tried again later", info.path.name)
                return False
            if segment.lease.was_forced:
                logger.warning(
                    "segment %s goes though a reader has held it too long", info.path.name
                )
            self._leaving = self._leaving._replace(segment=segment)
        self._discard(segment)
        self._leaving = None
        logger.warning(
            "deleted segment %s, log offsets %d to %d: %s asked for it: %s",
            info.path, info.base_offset, info.base_offset + info.size, who, reason,
        )  # fmt: skip
        self.on_deleted(info, reason)
        return True

    def _discard(self, segment: Segment) -> None:
        if self._files.exists(segment.path):
            self._allocator.discard(segment.path, in_use=segment.lease.was_forced)
        else:
            # An earlier try took the name away and failed after that.
            self._files.sync_folder(segment.path.parent)

    def _move_bounds(self, low: int) -> None:
        for dispatcher in self._dispatchers:
            if isinstance(dispatcher, QueueIndex):
                try:
                    dispatcher.move_min(low)
                except Exception:
                    logger.exception("the bounds of %s could not be moved", dispatcher.name)

    def _trim(self) -> None:
        # Not to the log's bound: a segment that is still held has its records, and its entries, until it goes.
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
                logger.exception("%s could not be trimmed; tried again later", dispatcher.name)
        if not failed:
            self._trimmed_to = low


def consult(
    policies: Sequence[RetentionPolicy],
    segments: Sequence[SegmentInfo],
    now_ms: int,
    disk: DiskUse,
) -> RetentionDecision:
    """Ask every policy; the largest vote counts, and any of them may refuse writes."""
    votes: list[Vote] = []
    failed: dict[str, Exception] = {}
    most = max(len(segments) - 1, 0)
    for policy in policies:
        try:
            count, reason, refuses = policy.vote(segments, now_ms, disk)
            # Out of range it would be taken from the list's other end.
            votes.append(Vote(min(max(int(count), 0), most), reason, refuses))
        except Exception as error:
            failed[policy.name] = error
            votes.append(Vote(0, f"policy {policy.name!r} failed: {error!r}"))
    if not votes:
        return RetentionDecision(0, "no policy is configured", None, failed)
    refusal = next((vote.reason for vote in votes if vote.refuse_writes), None)
    going = max(vote.expired_count for vote in votes)
    # Of nothing that goes, every policy says why.
    largest = [
        (policy.name, vote.reason)
        for policy, vote in zip(policies, votes, strict=True)
        if vote.expired_count == going
    ]
    reason = "; ".join(str(reason) for _, reason in largest)
    return RetentionDecision(going, reason, refusal, failed, tuple(name for name, _ in largest))
