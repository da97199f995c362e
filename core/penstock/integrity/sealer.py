"""Makes the digests of segments that are full and durable, in the background, one block a step.

Segments count however long ago they became full: what a crash left without a digest gets it at the next
open. Until then a segment is "not sealed yet". Neither the append lock nor a reader is ever waited for,
and a segment is held for one block at a time; one that goes meanwhile is passed over.
"""

from collections.abc import Callable

from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.integrity.segment_digests import DigestReader, Digests
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)

MIB = 1 << 20
# How soon a segment that is full but not durable yet is looked at again.
_WAITING_S = 1.0


class Sealer:
    """Seals the segments of one log. `step` is one worker's; the rest is safe from any thread.

    Attributes:
        durable: tells the log offset below which all is on disk; set by the engine.
        sealed: base offsets of the segments that have a digest.
    """

    def __init__(
        self, files: Files, digests: Digests, log: SegmentedLog, mib_per_s: int, sealed: list[int]
    ) -> None:
        self._files = files
        self._digests = digests
        self._log = log
        self._mib_per_s = mib_per_s
        self.durable: Callable[[], int] = lambda: 0
        self.sealed = set(sealed)
        # Could not be read, or the digest not be kept; the next open tries again.
        self._failed: set[int] = set()
        self._summing: DigestReader | None = None

    @property
    def waiting(self) -> int:
        """How many full segments are not sealed yet."""
        return sum(s.base_offset not in self.sealed for s in self._log.segments[:-1])

    def step(self) -> float | None:
        """Take in one block; returns the seconds to pause, None when nothing is left to seal."""
        if self._summing is None:
            segment = self._next()
            if segment is None:
                return None
            if segment.end_offset > self.durable():
                return _WAITING_S
            try:
                self._summing = DigestReader(self._files, segment)
            except OSError as error:
                self._give_up(segment, error)
                return 0.0
        return self._advance(self._summing) / (self._mib_per_s * MIB)

    def _next(self) -> Segment | None:
        done = self.sealed | self._failed
        return next((s for s in self._log.segments[:-1] if s.base_offset not in done), None)

    def _advance(self, summing: DigestReader) -> int:
        size = 0
        try:
            size = summing.step()
            if size == 0:
                self._seal(summing)
        except OffsetError:
            # It is leaving the log; another look must not choose it again.
            self._failed.add(summing.segment.base_offset)
        except OSError as error:
            self._give_up(summing.segment, error)
            size = 0
        if size == 0:
            self.close()
        return size

    def _seal(self, summing: DigestReader) -> None:
        segment = summing.segment
        self._digests.write(summing.digest())
        self.sealed.add(segment.base_offset)
        if not segment.lease.is_available:
            # It went while its digest was written, perhaps after that was to be forgotten.
            self.forget(segment.base_offset)

    def _give_up(self, segment: Segment, error: OSError) -> None:
        self._failed.add(segment.base_offset)
        logger.warning("segment %s is not sealed until the next open: %s", segment.path.name, error)

    def forget(self, base_offset: int) -> None:
        """Forget the digest of a segment that has gone."""
        self.sealed.discard(base_offset)
        self._failed.add(base_offset)
        try:
            self._digests.remove(base_offset)
        except OSError as error:
            # The next open finds that its segment is not there.
            logger.warning("the digest of segment %d stays behind: %s", base_offset, error)

    def close(self) -> None:
        """Let go of the file; what was summed up so far is begun again."""
        if self._summing is not None:
            self._summing.close()
            self._summing = None
