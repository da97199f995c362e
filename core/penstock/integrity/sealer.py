"""Computes the digests of full and durable segments in the background, one block per step.

A segment without a digest because of a crash gets it after the next open. A segment without a digest is "not
sealed yet". The sealer never waits for the append lock or for a reader, and holds the lease of a segment only
for one block at a time; a segment that is deleted meanwhile is skipped.
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
# The pause before a full segment that is not yet durable is checked again.
_WAITING_S = 1.0


class Sealer:
    """Seals the segments of one log. Only one worker may call `step`; the rest is safe from any thread.

    Attributes:
        durable: returns the log offset below which everything is on disk; set by the engine.
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
        # Segments that could not be read, or whose digest could not be written; the next open retries them.
        self._failed: set[int] = set()
        self._reader: DigestReader | None = None

    @property
    def waiting(self) -> int:
        """The number of full segments that are not sealed yet."""
        return sum(s.base_offset not in self.sealed for s in self._log.segments[:-1])

    def step(self) -> float | None:
        """Read one block; returns the seconds to pause, None if there is nothing left to seal."""
        if self._reader is None:
            segment = self._next()
            if segment is None:
                return None
            if segment.end_offset > self.durable():
                return _WAITING_S
            try:
                self._reader = DigestReader(self._files, segment)
            except OSError as error:
                self._give_up(segment, error)
                return 0.0
        return self._advance(self._reader) / (self._mib_per_s * MIB)

    def _next(self) -> Segment | None:
        done = self.sealed | self._failed
        return next((s for s in self._log.segments[:-1] if s.base_offset not in done), None)

    def _advance(self, reader: DigestReader) -> int:
        """Read the next block, and seal after the last; returns the bytes read, 0 at the end of the segment."""
        size = 0
        try:
            size = reader.step()
            if size == 0:
                self._seal(reader)
        except OffsetError:
            # The segment is being deleted; the next step must not choose it again.
            self._failed.add(reader.segment.base_offset)
        except OSError as error:
            self._give_up(reader.segment, error)
            size = 0
        if size == 0:
            self.close()
        return size

    def _seal(self, reader: DigestReader) -> None:
        segment = reader.segment
        self._digests.write(reader.digest())
        self.sealed.add(segment.base_offset)
        if not segment.lease.is_available:
            # The segment was deleted while its digest was written, possibly after `forget` was called.
            self.forget(segment.base_offset)

    def _give_up(self, segment: Segment, error: OSError) -> None:
        self._failed.add(segment.base_offset)
        logger.warning(
            "segment %s could not be sealed (%s); its data is not affected, and the next open retries it",
            segment.path.name,
            error,
        )

    def forget(self, base_offset: int) -> None:
        """Delete the digest of a segment that was deleted."""
        self.sealed.discard(base_offset)
        self._failed.add(base_offset)
        try:
            self._digests.remove(base_offset)
        except OSError as error:
            # The next open finds that its segment does not exist.
            logger.warning(
                "the digest of the deleted segment %d could not be deleted; the next open deletes it: %s",
                base_offset,
                error,
            )

    def close(self) -> None:
        """Close the file; the segment will be read again from its start."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
