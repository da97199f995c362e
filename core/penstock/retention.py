"""Taking away what may go: asks the policies, then lets the oldest segments go one by one.

A segment goes only if it is not the last, is durable, was dispatched everywhere, no plugin keeps it, and
no reader holds it; a hold that outlasts the interval is passed over. Queues and index are trimmed after.
Source: spec sections 9.5 and 11.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from penstock.contracts import Allocator, DiskUse, Dispatcher, RetentionPolicy, SegmentInfo, Vote
from penstock.files import Files
from penstock.log import SegmentedLog

logger = logging.getLogger(__name__)

FORCE_AFTER_MS = 120_000
# Never more in one round, so that a wrong clock cannot empty a store at once.
SEGMENTS_A_ROUND_MAX = 10


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
        now_ms: Callable[[], int],
        pause_ms: int,
    ) -> None:
        self._log = log
        self._policies = policies
        self._dispatchers = dispatchers
        self._allocator = allocator
        self._files = files
        self._now_ms = now_ms
        self._pause_s = pause_ms / 1000
        # Set by the engine. Below the safe offset all is durable and dispatched; `make_safe` moves it on.
        self.safe_offset: Callable[[], int] = lambda: 0
        self.make_safe: Callable[[], None] = lambda: None
        # Whether every plugin lets a segment go; whom to tell when it is gone.
        self.on_expired: Callable[[SegmentInfo, str], bool] = lambda _info, _reason: True
        self.on_deleted: Callable[[SegmentInfo, str], None] = lambda _info, _reason: None
        self.refusal: str | None = None
        self._released_base = -1
        self._stopping = threading.Event()
        self._one_at_a_time = threading.Lock()

    def vote(self) -> Vote:
        """Return the largest vote, and a refusal of writes if any policy asks for it."""
        segments = self._log.infos()
        disk = DiskUse(*self._files.free_bytes(self._log.folder))
        now = self._now_ms()
        votes = [policy.vote(segments, now, disk) for policy in self._policies]
        refusing = next((vote for vote in votes if vote.refuse_writes), None)
        self.refusal = refusing.reason if refusing else None
        return largest(votes)

    def run(self) -> int:
        """Let expired segments go; returns how many went."""
        with self._one_at_a_time:
            vote = self.vote()
            gone = self._let_go(min(vote.expired_count, SEGMENTS_A_ROUND_MAX), vote.reason)
            if gone and self.refusal is not None:
                # There may be room again: whoever puts need not wait for the next round.
                self.vote()
            return gone

    def let_go(self, count: int, reason: str) -> int:
        """Let up to `count` of the oldest segments go; returns how many went."""
        with self._one_at_a_time:
            return self._let_go(count, reason)

    def stop(self) -> None:
        """End a round that is under way; later ones let nothing go."""
        self._stopping.set()

    def _let_go(self, count: int, reason: str) -> int:
        infos = self._log.infos()
        going = infos[: min(count, len(infos) - 1)] if infos else []
        if going and going[-1].base_offset + going[-1].size > self.safe_offset():
            # Under a policy that never syncs nothing else would make it durable.
            self.make_safe()
        gone = 0
        for info in going:
            if gone and self._stopping.wait(self._pause_s):
                break
            if not self._let_one_go(info, reason):
                break
            gone += 1
        if gone:
            for dispatcher in self._dispatchers:
                dispatcher.trim(self._log.min_offset)
        return gone

    def _let_one_go(self, info: SegmentInfo, reason: str) -> bool:
        if info.base_offset + info.size > self.safe_offset():
            return False
        if self._released_base != info.base_offset:
            if not self.on_expired(info, reason):
                return False
            # Asked once, however often a reader makes us come back for it.
            self._released_base = info.base_offset
        segment = self._log.retire_first(self._now_ms(), FORCE_AFTER_MS)
        if segment is None:
            logger.info("segment %s is still being read; tried again later", info.path.name)
            return False
        if segment.lease.was_forced:
            logger.warning("segment %s goes though a reader has held it too long", info.path.name)
        self._allocator.discard(segment.path, in_use=segment.lease.was_forced)
        logger.info("segment %s went: %s", info.path.name, reason)
        self.on_deleted(info, reason)
        return True


def largest(votes: Sequence[Vote]) -> Vote:
    """Return the vote that counts."""
    if not votes:
        return Vote(0, "no policy is configured")
    return max(votes, key=lambda vote: vote.expired_count)
