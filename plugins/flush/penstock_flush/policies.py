"""The built-in flush policies.

* `sync`: a put returns when its bytes are on disk (group commit; RocketMQ's SYNC_FLUSH, spec section 8.3, without its
  retries). One thread of the kernel syncs. Records appended during a sync are covered by the next sync, so one sync
  serves all puts that arrived in the meantime. The thread started here only serves callers that do not wait.
* `async`: syncs at intervals; no put waits for a sync (spec section 8.4).
* `none`: never syncs by itself; the operating system writes back when it chooses.
"""

import contextlib
from abc import abstractmethod
from typing import Any, ClassVar

import attrs

from penstock.contracts import MS_MAX, Context, Flusher, FlushPolicy, Stoppable, limits
from penstock.errors import StoreFailedError

PAGE_BYTES = 4096
# 4 TiB: a policy that waits for more than a disk holds never syncs by size.
PAGES_MAX = 1 << 30


class _ThreadFlush(FlushPolicy):
    """A policy whose thread syncs. Safe from any thread."""

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context, flusher)
        self._worker: Stoppable | None = None

    def start(self) -> None:
        """Start the thread that syncs."""
        self._worker = self.context.spawn("penstock-flush", self._step)

    def request(self) -> None:
        """Wake the thread."""
        if self._worker is not None:
            self._worker.wake()

    @abstractmethod
    def _step(self) -> float | None:
        """Sync if needed; return the seconds until the next step, None to wait until the thread is woken."""

    def close(self) -> None:
        """Stop the thread."""
        if self._worker is not None:
            self._worker.stop()


@attrs.frozen(kw_only=True)
class SyncOptions:
    """Options of the sync policy.

    Attributes:
        timeout_ms: how long a put waits for the disk before its receipt says `FLUSH_DISK_TIMEOUT`.
    """

    timeout_ms: int = attrs.field(default=5000, validator=limits(1, MS_MAX))


class SyncFlush(_ThreadFlush):
    """Puts wait until their bytes are on disk. Safe from any thread."""

    name: ClassVar[str] = "sync"
    Options: ClassVar[type] = SyncOptions
    waits: ClassVar[bool] = True

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context, flusher)
        self.timeout_ms = options.timeout_ms

    def _step(self) -> float | None:
        # Flush even if everything is durable: a waiting caller may not have been notified yet.
        with contextlib.suppress(StoreFailedError):
            self.flusher.flush()
        return None


@attrs.frozen(kw_only=True)
class AsyncOptions:
    """Options of the async policy.

    Attributes:
        interval_ms: time between two checks. A power cut can lose about this much time of appends.
        least_pages: number of 4096-byte pages that must be waiting before a sync starts. 0: whatever waits is synced.
        thorough_interval_ms: after this time all waiting bytes are synced, even if they are less than `least_pages`.
    """

    interval_ms: int = attrs.field(default=500, validator=limits(1, MS_MAX))
    least_pages: int = attrs.field(default=0, validator=limits(0, PAGES_MAX))
    thorough_interval_ms: int = attrs.field(default=10_000, validator=limits(0, MS_MAX))


class AsyncFlush(_ThreadFlush):
    """A put returns at once; its bytes are on disk about one interval later. Safe from any thread."""

    name: ClassVar[str] = "async"
    capabilities: ClassVar[frozenset[str]] = frozenset({"syncs"})
    Options: ClassVar[type] = AsyncOptions

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context, flusher)
        self._requested = False
        self._thorough_at_ms = context.clock.monotonic_ms()

    def request(self) -> None:
        """Sync soon, whatever the amount of waiting bytes: a caller requested a future."""
        self._requested = True
        super().request()

    def _step(self) -> float | None:
        if self._is_due():
            self._requested = False
            try:
                self.flusher.flush()
            except StoreFailedError:
                # The next put or flush raises the error.
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


class NoFlush(FlushPolicy):
    """Syncs only on request: `flush()`, `submit`, a clean close. A power cut may lose everything after that.

    Use it for data that can be produced again, and as the baseline for comparing the other policies.
    """

    name: ClassVar[str] = "none"
