"""Taking away what may go: asks the policies, then lets the oldest segments go one by one.

A segment goes only if it is not the last, is durable, was dispatched everywhere, and no reader holds
it; a hold that outlasts the interval is passed over. Queues and index are trimmed after.
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
    ) -> None:
        self._log = log
        self._policies = policies
        self._dispatchers = dispatchers
        self._allocator = allocator
        self._files = files
        self._now_ms = now_ms
        # Set by the engine: below this all is durable and dispatched; whom to tell of a deletion.
        self.safe_offset: Callable[[], int] = lambda: 0
        self.on_deleted: Callable[[SegmentInfo, str], None] = lambda _info, _reason: None
        self.refusal: str | None = None
        self._one_at_a_time = threading.Lock()

    def vote(self) -> Vote:
        """Return the largest vote, and a refusal of writes if any policy asks for it."""
        segments = self._log.infos()
        if not segments:
            return Vote(0, "the log is empty")
        disk = DiskUse(*self._files.free_bytes(self._log.folder))
        now = self._now_ms()
        votes = [policy.vote(segments, now, disk) for policy in self._policies]
        if not votes:
            return Vote(0, "no policy is configured")
        refusing = next((vote for vote in votes if vote.refuse_writes), None)
        self.refusal = refusing.reason if refusing else None
        return max(votes, key=lambda vote: vote.expired_count)

    def run(self) -> int:
        """Let expired segments go; returns how many went."""
        vote = self.vote()
        return self.let_go(min(vote.expired_count, SEGMENTS_A_ROUND_MAX), vote.reason)

    def let_go(self, count: int, reason: str) -> int:
        """Let up to `count` of the oldest segments go; returns how many went."""
        with self._one_at_a_time:
            return self._let_go(count, reason)

    def _let_go(self, count: int, reason: str) -> int:
        infos = self._log.infos()
        gone = 0
        for info in infos[: min(count, len(infos) - 1)] if infos else ():
            if info.base_offset + info.size > self.safe_offset():
                break
            segment = self._log.retire_first(self._now_ms(), FORCE_AFTER_MS)
            if segment is None:
                logger.info("segment %s is still being read; tried again later", info.path.name)
                break
            self._allocator.discard(segment.path)
            logger.info("segment %s went: %s", info.path.name, reason)
            self.on_deleted(info, reason)
            gone += 1
        if gone:
            for dispatcher in self._dispatchers:
                dispatcher.trim(self._log.min_offset)
        return gone
