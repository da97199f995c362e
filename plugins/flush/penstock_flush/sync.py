"""Durable before a put returns: group commit.

One thread syncs. What is appended while a sync runs is covered by the next one, so a sync is shared by
all that gathered meanwhile. Where the writer's files allow it that is a thread of the kernel's own, and the one
here only serves those who do not wait. RocketMQ's SYNC_FLUSH (spec section 8.3), without its retries.
"""

import contextlib
from typing import Any, ClassVar

import attrs

from penstock.contracts import Context, Flusher, FlushPolicy, Stoppable
from penstock.errors import StoreFailedError


@attrs.frozen(kw_only=True)
class SyncOptions:
    """Options of the sync policy.

    Attributes:
        timeout_ms: how long a put waits for the disk before its receipt says `FLUSH_DISK_TIMEOUT`.
    """

    timeout_ms: int = 5000


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
        """Begin the thread that syncs."""
        self._worker = self.context.spawn("penstock-flush", self._step)

    def after_append(self, end_offset: int) -> None:
        """Nothing: whoever waits asks by `request`."""

    def request(self) -> None:
        """Wake the thread."""
        if self._worker is not None:
            self._worker.wake()

    def _step(self) -> float | None:
        # Also where all is durable: somebody may not have been told.
        with contextlib.suppress(StoreFailedError):
            self.flusher.flush()
        return None

    def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            self._worker.stop()
