"""Flush policies: the strategies that decide when appended bytes become durable."""

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from penstock.contracts.base import Context, Strategy


class Flusher(Protocol):
    """The kernel's interface for flush policies. Safe from any thread."""

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was appended."""

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was passed to the operating system."""

    def flush(self) -> int:
        """Commit everything appended and make it durable, notify the waiters; return the new flushed offset.

        Raises `StoreFailedError` if a sync fails, and on every call after that.
        """


class FlushPolicy(Strategy):
    """Decides when appended bytes become durable (`[flush]`).

    Capabilities: "waits" (`appender_waits` is True), "syncs" (messages become durable after some time
    without a request).

    Attributes:
        appender_waits: a put with `wait=True` returns only when its bytes are durable, or in doubt.
        hears_appends: whether `after_append` is called; False saves each put a call if the policy does nothing there.
        group_commit: waiting puts are synced as soon as possible, with one sync for all puts that wait by then. The kernel
            does that by itself if the writer's files allow it (`SegmentChannel.descriptor`). Then `request` is called
            only for puts that do not block; it must lead to a `flush`, even if nothing is left to sync.
        timeout_ms: how long a waiting put waits before its receipt has the status `FLUSH_DISK_TIMEOUT`.
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
        """Flush soon, because a put waits for durability. Called from any thread."""
        self.flusher.flush()

    def close(self) -> None:
        """End background work; the kernel flushes once more afterwards."""
