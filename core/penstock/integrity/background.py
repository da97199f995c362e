"""The background work on full segments of a writing store: sealing and scrubbing."""

from collections.abc import Callable
from pathlib import Path

import attrs

from penstock.config.model import ScrubConfig
from penstock.contracts import SpawnWorker, Stoppable
from penstock.contracts.dispatcher import Finding
from penstock.files import Files
from penstock.integrity.scrubber import Scrubber
from penstock.integrity.sealer import Sealer
from penstock.integrity.segment_digests import Digests
from penstock.log.segmented_log import SegmentedLog


@attrs.define(eq=False)
class Upkeep:
    """The sealer and the scrubber of one store. Safe from any thread."""

    sealer: Sealer
    scrub: Scrubber
    _config: ScrubConfig
    _workers: list[Stoppable] = attrs.Factory(list)

    @classmethod
    def of(
        cls, files: Files, root: Path, log: SegmentedLog, config: ScrubConfig, sealed: list[int]
    ) -> "Upkeep":
        """Return the services for a log; `sealed` are the base offsets of the segments with trusted digests."""
        digests = Digests(files, root)
        sealer = Sealer(files, digests, log, config.seal_mib_per_s, sealed)
        return cls(
            sealer, Scrubber(files, digests, log, config.mib_per_s, config.interval_hours), config
        )

    def start(
        self, spawn: SpawnWorker, durable: Callable[[], int], on_finding: Callable[[Finding], None]
    ) -> None:
        """Start the services that the configuration enables."""
        self.sealer.durable, self.scrub.on_finding = durable, on_finding
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
