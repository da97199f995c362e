"""When appended bytes become durable."""

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from penstock.contracts.base import Context, Strategy


class Flusher(Protocol):
    """The kernel's side of flushing, as a policy uses it. Safe from any thread."""

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was appended."""

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was handed to the operating system."""

    def flush(self) -> int:
        """Commit and make durable all that was appended, tell the waiters; returns the new flushed offset.

        Raises `StoreFailedError` once a sync has failed, and ever after.
        """


class FlushPolicy(Strategy):
    """Decides when appended bytes become durable (`[flush]`).

    Capabilities: "waits" (`appender_waits` is True), "syncs" (what was put becomes durable in time
    without anybody asking).

    Attributes:
        appender_waits: a put with `wait=True` returns only when its bytes are durable, or in doubt.
        hears_appends: `after_append` is called; a policy that does nothing there saves each put a call by False.
        group_commit: puts that wait are synced as soon as possible, each sync for all who have come by then. The kernel
            does that by itself where the writer's files allow it (`SegmentChannel.descriptor`), and `request` is called
            only for those who do not wait; it must lead to a `flush`, even if nothing is left to sync.
        timeout_ms: how long such a put waits before its receipt says `FLUSH_DISK_TIMEOUT`.
    """

    appender_waits: ClassVar[bool] = False
    hears_appends: ClassVar[bool] = True
    group_commit: ClassVar[bool] = False
    timeout_ms: int = 5000

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context)
        self.flusher = flusher

    def start(self) -> None:
        """Begin background work."""

    @abstractmethod
    def after_append(self, end_offset: int) -> None:
        """Called after each append, outside the append lock, if the policy `hears_appends`; must be cheap."""

    def request(self) -> None:
        """Somebody waits for durability: flush soon. Called from any thread."""
        self.flusher.flush()

    def close(self) -> None:
        """End background work; the kernel flushes once more after this."""
