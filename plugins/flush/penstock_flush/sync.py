"""The `sync` flush policy: a put returns when its bytes are on disk (group commit).

One thread syncs. Records appended during a sync are covered by the next sync, so one sync serves all puts
that arrived in the meantime. If the writer's files allow it, that thread belongs to the kernel, and the thread
started here only serves callers that do not wait. Corresponds to RocketMQ's SYNC_FLUSH (spec section 8.3), without its
retries.
"""

import contextlib
from typing import Any, ClassVar

import attrs

from penstock.contracts import MS_MAX, Context, Flusher, FlushPolicy, Stoppable, limits
from penstock.errors import StoreFailedError


@attrs.frozen(kw_only=True)
class SyncOptions:
    """Options of the sync policy.

    Attributes:
        timeout_ms: how long a put waits for the disk before its receipt says `FLUSH_DISK_TIMEOUT`.
    """

    timeout_ms: int = attrs.field(default=5000, validator=limits(1, MS_MAX))


class SyncFlush(FlushPolicy):
    """Puts wait until their bytes are on disk. Safe from any thread."""

    name: ClassVar[str] = "sync"
    capabilities: ClassVar[frozenset[str]] = frozenset({"waits"})
    hears_appends: ClassVar[bool] = False
    Options: ClassVar[type] = SyncOptions
    appender_waits: ClassVar[bool] = True
    group_commit: ClassVar[bool] = True

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context, flusher)
        self.timeout_ms = options.timeout_ms
        self._worker: Stoppable | None = None

    def start(self) -> None:
        """Start the thread that syncs."""
        self._worker = self.context.spawn("penstock-flush", self._step)

    def after_append(self, end_offset: int) -> None:
        """Do nothing: a caller that waits calls `request`."""

    def request(self) -> None:
        """Wake the thread."""
        if self._worker is not None:
            self._worker.wake()

    def _step(self) -> float | None:
        # Flush even if everything is durable: a waiting caller may not have been notified yet.
        with contextlib.suppress(StoreFailedError):
            self.flusher.flush()
        return None

    def close(self) -> None:
        """Stop the thread."""
        if self._worker is not None:
            self._worker.stop()
