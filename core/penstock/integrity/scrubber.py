"""Compares sealed segments with their digests periodically, at a limited rate, and reports corruption.

Each step reads one block. A pass reads all sealed segments, oldest first. The first pass begins one
interval after the store was opened, so short-lived processes never scrub. Corruption is logged, counted,
and passed to the callback; it changes nothing, and reading and writing continue. A segment that is deleted
meanwhile is skipped. Pages in the system's page cache are compared as they are there, not as on disk.
"""

from collections import deque
from collections.abc import Callable

from penstock.contracts.dispatcher import Finding, damaged_blocks
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.integrity.sealer import MIB
from penstock.integrity.segment_digests import DigestReader, Digests
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

logger = get_logger(__name__)

_HOUR_S = 3600.0
# The number of findings kept for `Store.stats()`.
_FINDINGS_MAX = 20


class Scrubber:
    """Scrubs the sealed segments of one log. Only one worker may call `step`; the rest is safe from any thread.

    Attributes:
        on_finding: called with each finding; set by the engine.
        findings: the latest findings.
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
        self.on_finding: Callable[[Finding], None] = lambda _finding: None
        self.findings: deque[Finding] = deque(maxlen=_FINDINGS_MAX)
        self.found = self.passes = self.bytes_read = 0
        self._reader: DigestReader | None = None
        # The log offset from which segments remain in this pass; None before the first pass.
        self._from: int | None = None

    def step(self) -> float:
        """Compare one block; returns the seconds to pause."""
        if self._from is None:
            self._from = 0
            return self._interval_s
        if self._reader is None:
            segment = self._next(self._from)
            if segment is None:
                self._from = 0
                self.passes += 1
                return self._interval_s
            self._from = segment.end_offset
            try:
                self._reader = DigestReader(self._files, segment)
            except OSError as error:
                self._report_unreadable(segment, 0, error)
                return 0.0
        size = self._advance(self._reader)
        self.bytes_read += size
        return size / (self._mib_per_s * MIB)

    def _next(self, start: int) -> Segment | None:
        return next(
            (s for s in self._log.segments[:-1]
             if s.base_offset >= start and self._digests.read(s) is not None),
            None,
        )  # fmt: skip

    def _advance(self, reader: DigestReader) -> int:
        """Read the next block, and compare after the last; returns the bytes read, 0 at the end of the segment."""
        size = 0
        try:
            size = reader.step()
            if size == 0:
                self._compare(reader)
        except OffsetError:
            logger.debug("segment %s was deleted while it was scrubbed", reader.segment.path.name)
        except OSError as error:
            self._report_unreadable(reader.segment, reader.position, error)
            size = 0
        if size == 0:
            self.close()
        return size

    def _compare(self, reader: DigestReader) -> None:
        segment = reader.segment
        known = self._digests.read(segment)
        ranges = known.differing(reader.digest()) if known is not None else []
        if segment.lease.is_available:
            for start, stop in ranges:
                self._report(damaged_blocks(segment.path, segment.base_offset, start, stop))

    def _report_unreadable(self, segment: Segment, position: int, error: OSError) -> None:
        if segment.lease.is_available:
            log_offset = segment.base_offset + position
            text = f"the segment cannot be read: {error}"
            self._report(Finding("digest", segment.path, position, log_offset, text))

    def _report(self, finding: Finding) -> None:
        self.found += 1
        self.findings.append(finding)
        logger.error("%s, byte %d: %s", finding.path, finding.position, finding.text)
        self.on_finding(finding)

    def close(self) -> None:
        """Close the file; the segment will be read again from its start."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
