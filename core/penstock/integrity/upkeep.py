"""The background work on full segments of a writing store: computes their digests, and checks them periodically.

Each step reads one block, at a limited rate. A segment without a digest, also because of a crash, is "not sealed yet":
the sealer computes it when the segment is durable. It never waits for the append lock or for a reader, and holds the
lease of a segment only for one block at a time. A segment that is deleted meanwhile is skipped.

A pass of the scrubber reads all sealed segments, oldest first. The first pass begins one interval after the store was
opened, so short-lived processes never scrub. Corruption is logged, counted, and reported to plugins; it changes
nothing, and reading and writing continue. Pages in the system's page cache are compared as they are there, not as on
disk.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path

import attrs

from penstock.config.model import ScrubConfig
from penstock.contracts import Flusher, SpawnWorker, Stoppable
from penstock.contracts.dispatcher import Finding, damaged_blocks
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


class SegmentWork(ABC):
    """Reads segments of one log, block by block. Only one worker may call `step`; the rest is safe from any thread.

    Attributes:
        bytes_read: the number of bytes read so far.
    """

    def __init__(self, files: Files, digests: Digests, log: SegmentedLog, mib_per_s: int) -> None:
        self._files, self._digests, self._log = files, digests, log
        self._mib_per_s = mib_per_s
        self.bytes_read = 0
        self._reader: DigestReader | None = None

    def step(self) -> float | None:
        """Read one block; returns the seconds to pause, None if there is nothing left to read."""
        if self._reader is None:
            chosen = self._choose()
            if not isinstance(chosen, Segment):
                return chosen
            try:
                self._reader = DigestReader(self._files, chosen)
            except OSError as error:
                self._on_error(chosen, 0, error)
                return 0.0
        size = self._advance(self._reader)
        self.bytes_read += size
        return size / (self._mib_per_s * MIB)

    def _advance(self, reader: DigestReader) -> int:
        """Read the next block; returns the bytes read, 0 at the end of the segment."""
        size = 0
        try:
            size = reader.step()
            if size == 0:
                self._on_end(reader)
        except OffsetError:
            self._on_deleted(reader.segment)
        except OSError as error:
            self._on_error(reader.segment, reader.position, error)
            size = 0
        if size == 0:
            self.close()
        return size

    @abstractmethod
    def _choose(self) -> Segment | float | None:
        """Return the segment to read next, or what `step` returns if none is to be read now."""

    @abstractmethod
    def _on_end(self, reader: DigestReader) -> None:
        """Use the digest of a segment that was read completely."""

    @abstractmethod
    def _on_error(self, segment: Segment, position: int, error: OSError) -> None:
        """Skip a segment that could not be read at a position, or whose digest could not be used."""

    def _on_deleted(self, segment: Segment) -> None:
        """Skip a segment that was deleted while it was read."""
        logger.debug("segment %s was deleted while it was read", segment.path.name)

    def close(self) -> None:
        """Close the file; the segment will be read again from its start."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Sealer(SegmentWork):
    """Seals the segments of one log; see `SegmentWork`.

    Attributes:
        sealed: base offsets of the segments that have a digest.
    """

    def __init__(
        self, files: Files, digests: Digests, log: SegmentedLog, flusher: Flusher, mib_per_s: int,
        sealed: list[int],
    ) -> None:  # fmt: skip
        super().__init__(files, digests, log, mib_per_s)
        self._flusher = flusher
        self.sealed = set(sealed)
        # Segments that could not be read, or whose digest could not be written; the next open retries them.
        self._failed: set[int] = set()

    @property
    def waiting(self) -> int:
        """The number of full segments that are not sealed yet."""
        return sum(s.base_offset not in self.sealed for s in self._log.segments[:-1])

    def _choose(self) -> Segment | float | None:
        done = self.sealed | self._failed
        segment = next((s for s in self._log.segments[:-1] if s.base_offset not in done), None)
        if segment is not None and segment.end_offset > self._flusher.flushed_offset:
            return _WAITING_S
        return segment

    def _on_end(self, reader: DigestReader) -> None:
        segment = reader.segment
        self._digests.write(reader.digest())
        self.sealed.add(segment.base_offset)
        if not segment.lease.is_available:
            # The segment was deleted while its digest was written, possibly after `forget` was called.
            self.forget(segment.base_offset)

    def _on_deleted(self, segment: Segment) -> None:
        self._failed.add(segment.base_offset)

    def _on_error(self, segment: Segment, position: int, error: OSError) -> None:
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


_HOUR_S = 3600.0
# The number of findings kept for `Store.stats()`.
_FINDINGS_MAX = 20


class Scrubber(SegmentWork):
    """Scrubs the sealed segments of one log; see `SegmentWork`.

    Attributes:
        findings: the latest findings.
    """

    def __init__(
        self, files: Files, digests: Digests, log: SegmentedLog, fire: Callable[..., None], mib_per_s: int,
        interval_hours: float,
    ) -> None:  # fmt: skip
        super().__init__(files, digests, log, mib_per_s)
        self._fire = fire
        self._interval_s = interval_hours * _HOUR_S
        self.findings: deque[Finding] = deque(maxlen=_FINDINGS_MAX)
        self.found = self.passes = 0
        # The log offset from which segments remain in this pass; None before the first pass.
        self._from: int | None = None

    def _choose(self) -> Segment | float:
        if self._from is not None:
            segment = self._next(self._from)
            if segment is not None:
                self._from = segment.end_offset
                return segment
            self.passes += 1
        self._from = 0
        return self._interval_s

    def _next(self, start: int) -> Segment | None:
        return next(
            (s for s in self._log.segments[:-1]
             if s.base_offset >= start and self._digests.read(s) is not None),
            None,
        )  # fmt: skip

    def _on_end(self, reader: DigestReader) -> None:
        segment = reader.segment
        known = self._digests.read(segment)
        ranges = known.differing(reader.digest()) if known is not None else []
        if segment.lease.is_available:
            for start, stop in ranges:
                self._report(damaged_blocks(segment.path, segment.base_offset, start, stop))

    def _on_error(self, segment: Segment, position: int, error: OSError) -> None:
        if segment.lease.is_available:
            log_offset = segment.base_offset + position
            text = f"the segment cannot be read: {error}"
            self._report(Finding("digest", segment.path, position, log_offset, text))

    def _report(self, finding: Finding) -> None:
        self.found += 1
        self.findings.append(finding)
        logger.error("%s, byte %d: %s", finding.path, finding.position, finding.text)
        self._fire(
            "penstock_damage_found", path=str(finding.path), position=finding.position,
            log_offset=finding.log_offset, text=finding.text,
        )  # fmt: skip


@attrs.define(eq=False)
class Upkeep:
    """The sealer and the scrubber of one store. Safe from any thread."""

    sealer: Sealer
    scrub: Scrubber
    _config: ScrubConfig
    _workers: list[Stoppable] = attrs.Factory(list)

    @classmethod
    def of(
        cls, files: Files, root: Path, log: SegmentedLog, flusher: Flusher, fire: Callable[..., None],
        config: ScrubConfig, sealed: list[int],
    ) -> "Upkeep":  # fmt: skip
        """Return the services for a log; `sealed` are the base offsets of the segments with trusted digests."""
        digests = Digests(files, root)
        return cls(
            Sealer(files, digests, log, flusher, config.seal_mib_per_s, sealed),
            Scrubber(files, digests, log, fire, config.mib_per_s, config.interval_hours),
            config,
        )

    def start(self, spawn: SpawnWorker) -> None:
        """Start the services that the configuration enables."""
        if self._config.digests:
            self._workers.append(spawn("penstock-seal", self.sealer.step))
            if self._config.interval_hours > 0:
                self._workers.append(spawn("penstock-scrub", self.scrub.step))

    def wake(self) -> None:
        """Wake the sealer: a segment has become full."""
        for worker in self._workers[:1]:
            worker.wake()

    def stats(self) -> dict[str, object]:
        """Return figures for `Store.stats()`."""
        scrub = self.scrub
        last = scrub.findings[-1] if scrub.findings else None
        return {
            "sealed_segments": len(self.sealer.sealed),
            "not_sealed_yet": self.sealer.waiting,
            "scrub_passes": scrub.passes,
            "scrubbed_bytes": scrub.bytes_read,
            "damage_found": scrub.found,
            "last_damage": f"{last.path}, byte {last.position}: {last.text}" if last else None,
        }

    def stop(self) -> None:
        """Stop both services, and wait for their current steps."""
        for worker in self._workers:
            worker.stop()
        self.sealer.close()
        self.scrub.close()
