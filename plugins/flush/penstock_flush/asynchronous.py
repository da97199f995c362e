"""Durable soon: syncs at intervals, without any put waiting (spec section 8.4)."""

from typing import Any, ClassVar

import attrs

from penstock.contracts import Context, Flusher, FlushPolicy, Stoppable
from penstock.errors import StoreFailedError

PAGE_BYTES = 4096


@attrs.frozen(kw_only=True)
class AsyncOptions:
    """Options of the async policy.

    Attributes:
        interval_ms: how often it looks; the most that a power cut can lose is about this much time.
        least_pages: a sync waits until so many pages of 4096 bytes have come together.
        thorough_interval_ms: after so long everything is synced, however little it is.
    """

    interval_ms: int = 500
    least_pages: int = 4
    thorough_interval_ms: int = 10_000


class AsyncFlush(FlushPolicy):
    """Puts return at once; bytes are on disk an interval later. Safe from any thread."""

    name: ClassVar[str] = "async"
    capabilities: ClassVar[frozenset[str]] = frozenset({"syncs"})
    hears_appends: ClassVar[bool] = False
    Options: ClassVar[type] = AsyncOptions

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context, flusher)
        self._worker: Stoppable | None = None
        self._requested = False
        self._thorough_at_ms = context.clock.monotonic_ms()

    def start(self) -> None:
        """Begin the thread that syncs."""
        self._worker = self.context.spawn("penstock-flush", self._step)

    def after_append(self, end_offset: int) -> None:
        """Nothing: the thread looks by itself."""

    def request(self) -> None:
        """Sync soon, whatever waits: somebody asked for a future."""
        self._requested = True
        if self._worker is not None:
            self._worker.wake()

    def _step(self) -> float | None:
        if self._is_due():
            self._requested = False
            try:
                self.flusher.flush()
            except StoreFailedError:
                # The next put or flush gets the error.
                return None
        return float(self.options.interval_ms) / 1000

    def _is_due(self) -> bool:
        now = self.context.clock.monotonic_ms()
        waiting = self.flusher.wrote_offset - self.flusher.flushed_offset
        thorough = now - self._thorough_at_ms >= self.options.thorough_interval_ms
        if thorough:
            self._thorough_at_ms = now
        enough = waiting >= self.options.least_pages * PAGE_BYTES
        return waiting > 0 and (enough or thorough or self._requested)

    def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            self._worker.stop()
