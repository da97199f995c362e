"""Reads sealed segments against their digests again and again, at a gentle rate, and tells of damage.

One block a step. A pass goes over all segments that are sealed, oldest first; the first one begins an
interval after the store was opened, so short-lived processes never scrub. Damage is logged, counted,
and told; nothing is changed by it, and reading and writing go on. A segment that goes meanwhile is
passed over. Pages that the system still has in memory are compared as they are there.
"""

from collections import deque
from collections.abc import Callable

from penstock.contracts.findings import Finding, damaged_blocks
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.integrity.sealer import MIB
from penstock.integrity.segment_digests import DigestReader, Digests
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)

_HOUR_S = 3600.0
# So many findings are kept for `Store.stats()`.
_FINDINGS_MAX = 20


class Scrubber:
    """Scrubs the sealed segments of one log. `step` is one worker's; the rest is safe from any thread.

    Attributes:
        told: called with each finding; set by the engine.
        findings: the latest ones.
    """

    def __init__(
        self,
        files: Files,
        digests: Digests,
        log: SegmentedLog,
        mib_per_s: int,
        interval_hours: float,
    ) -> None:
        self._files = files
        self._digests = digests
        self._log = log
        self._mib_per_s = mib_per_s
        self._interval_s = interval_hours * _HOUR_S
        self.told: Callable[[Finding], None] = lambda _finding: None
        self.findings: deque[Finding] = deque(maxlen=_FINDINGS_MAX)
        self.found = self.passes = self.bytes_read = 0
        self._summing: DigestReader | None = None
        # Segments from here on are still to come in this pass; None before the first one.
        self._from: int | None = None

    def step(self) -> float:
        """Compare one block; returns the seconds to pause."""
        if self._from is None:
            self._from = 0
            return self._interval_s
        if self._summing is None:
            segment = self._next(self._from)
            if segment is None:
                self._from = 0
                self.passes += 1
                return self._interval_s
            self._from = segment.end_offset
            try:
                self._summing = DigestReader(self._files, segment)
            except OSError as error:
                self._tell_unreadable(segment, 0, error)
                return 0.0
        size = self._advance(self._summing)
        self.bytes_read += size
        return size / (self._mib_per_s * MIB)

    def _next(self, start: int) -> Segment | None:
        return next(
            (s for s in self._log.segments[:-1]
             if s.base_offset >= start and self._digests.read(s) is not None),
            None,
        )  # fmt: skip

    def _advance(self, summing: DigestReader) -> int:
        size = 0
        try:
            size = summing.step()
            if size == 0:
                self._compare(summing)
        except OffsetError:
            logger.debug("segment %s went while it was scrubbed", summing.segment.path.name)
        except OSError as error:
            self._tell_unreadable(summing.segment, summing.position, error)
            size = 0
        if size == 0:
            self.close()
        return size

    def _compare(self, summing: DigestReader) -> None:
        segment = summing.segment
        known = self._digests.read(segment)
        stretches = known.differing(summing.digest()) if known is not None else []
        if segment.lease.is_available:
            for start, stop in stretches:
                self._tell(damaged_blocks(segment.path, segment.base_offset, start, stop))

    def _tell_unreadable(self, segment: Segment, position: int, error: OSError) -> None:
        if segment.lease.is_available:
            log_offset = segment.base_offset + position
            text = f"the segment cannot be read: {error}"
            self._tell(Finding("digest", segment.path, position, log_offset, text))

    def _tell(self, finding: Finding) -> None:
        self.found += 1
        self.findings.append(finding)
        logger.error("%s, byte %d: %s", finding.path, finding.position, finding.text)
        self.told(finding)

    def close(self) -> None:
        """Let go of the file; the segment is begun again."""
        if self._summing is not None:
            self._summing.close()
            self._summing = None
