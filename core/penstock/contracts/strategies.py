"""The strategies of the log: flush policies, segment writers and allocators, and retention policies."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from penstock._kernel import GatherBuffer
from penstock.contracts.base import Context, Strategy
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.columns import Buffer


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

    Capabilities: "syncs" (messages become durable after some time without a request).

    Attributes:
        waits: a put with `wait=True` returns only when its bytes are durable, or in doubt. The kernel syncs by itself
            as soon as possible, once for all puts that wait by then.
        timeout_ms: how long a waiting put waits before its receipt has the status `FLUSH_DISK_TIMEOUT`.
    """

    waits: ClassVar[bool] = False
    timeout_ms: int = 5000

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context)
        self.flusher = flusher

    def start(self) -> None:
        """Begin background work."""

    def after_append(self, end_offset: int) -> None:
        """Called after each append, outside the append lock, if a policy overrides it; must be cheap.

        An exception stops the store, as one of `request` does: the record is in the log, and a retry would double it.
        """

    def request(self) -> None:
        """Flush soon, even if nothing is left to sync, for a caller that does not block. Called from any thread."""
        self.flusher.flush()

    def close(self) -> None:
        """End background work; the kernel flushes once more afterwards."""


class SegmentChannel(ABC):
    """One segment file being written, front to back. One writer; any number of readers of `view`.

    The kernel uses `buffer` and `descriptor` in place of `write`, `commit` and `flush`: a subclass that overrides one
    of those methods overrides what takes its place, too.

    Invariants: a byte below a position that was passed to `commit` is in `view` and survives a crash of the process; so
    does a byte that was committed before a `flush` survive a crash of the machine.

    Attributes:
        blocks: allocates the file's blocks ahead; None for a file that has all of them. The kernel reserves blocks
            before the first byte of a batch, which may span multiple segments, is written, and frees the rest at a
            clean close; `write` must reserve as well.
        buffer: takes single records in place of `write`; None if the kernel must call `write`. For a writer that
            commits at once: the whole file as writable memory, which the kernel keeps until the segment is sealed, or
            the attribute is read again. For a writer that holds bytes back: a `GatherBuffer`, whose content `commit`
            must write.
        buffer_end: stores into `buffer` before this position cannot run out of room; read again after each `write`, and
            after blocks were reserved.
        descriptor: the file's descriptor, if `flush` does nothing but `fdatasync`; None if `flush` must be called. With
            a descriptor, the kernel syncs without the GIL. That is allowed only if nothing has to be committed first,
            or all uncommitted bytes are in `buffer` and written through the same descriptor. It must stay open until
            `close`.
    """

    blocks: Blocks | None = None

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The whole file as readers see it; uncommitted bytes may be missing."""

    @property
    def buffer(self) -> memoryview | GatherBuffer | None:
        """See `Attributes`."""
        return None

    @property
    def buffer_end(self) -> int:
        """See `Attributes`."""
        return 0

    @property
    def descriptor(self) -> int | None:
        """See `Attributes`."""
        return None

    @abstractmethod
    def write(self, position: int, data: Buffer, sizes: Sequence[int] = ()) -> None:
        """Write one record at `position`, or several, whose `sizes` are given.

        Raises `OSError` if that fails. If the disk is full (ENOSPC, EDQUOT), the kernel then erases what is left of
        it. After any other failure the store takes no more writes. If the process is killed during a write of several,
        the file must hold the first records and none of the later ones: a valid record after an incomplete one looks
        like corruption. So one copy of all records into a map, which copies bytes in any order, must not be used.
        """

    @abstractmethod
    def commit(self, stop: int) -> None:
        """Pass all written bytes before `stop` to the operating system; they end the segment if that is its size.

        May run concurrently with `write`, never with itself.
        """

    @abstractmethod
    def flush(self) -> None:
        """Make all committed bytes durable; after an exception it is not known which bytes are, and the store fails.

        Called from a thread of the kernel, which Python's `threading` has not started, and once more by the thread that
        closes the store if `blocks` were freed.
        """

    def synced(self) -> None:  # noqa: B027 - most have nothing to do
        """Called, from any thread, after the file was synced through `descriptor` and not by `flush`."""

    @abstractmethod
    def close(self) -> None:
        """Close the file and drop its memory; nothing is flushed."""


class Committer(Protocol):
    """The kernel's interface for writers that hold bytes back. Safe from any thread."""

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was written to a channel."""

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was passed to the operating system."""

    def commit(self) -> int:
        """Pass all written bytes to the operating system, oldest first; return the new committed offset.

        Raises `StoreFailedError` if that fails, and on every call after that.
        """


class SegmentWriter(Strategy):
    """How appended bytes reach a segment file (`[write]`).

    Capabilities: "mapped" (writes through the map that `File.map` returns, so prefaulting helps).

    Attributes:
        needs_allocated_file: the file must have all its blocks before the first write. A store
            through a map into a hole kills the process when the disk is full; for other writers, this
            makes a full disk fail at the roll and not within a record. A writer that allocates ahead of
            its writes by itself (`SegmentChannel.blocks`) sets False.
        commits_at_once: written bytes are readable, and survive a crash of the process, as soon as `write`
            returns. A writer that sets False holds bytes back, and commits them by itself from `start` on;
            under a flush policy that waits (`Context.appenders_wait`) it may leave that to the syncs.
    """

    needs_allocated_file: ClassVar[bool] = True
    commits_at_once: bool = True

    def start(self, committer: Committer) -> None:
        """Begin background work; called once, before the first append."""

    @abstractmethod
    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """Return a channel for `file`, whose first `position` bytes are already written.

        The channel owns the file from then on and closes it. Raises `BusyError` if this is not possible
        now, but may be later; the caller still owns the file then.
        """

    def close(self) -> None:
        """End background work and release resources that the channels share."""


class Allocator(Strategy):
    """How the next segment file is created, and what is done with an old one (`[alloc]`).

    `obtain` and `expect` are called under the append lock, `discard` and `sealed` from other threads.
    Capabilities: "ahead" (creates expected files in the background), "recycles" (reuses discarded
    files).
    """

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        """Called with the files that will be obtained next, the first one first; must return at once.

        An exception is logged: `obtain` is called all the same.
        """

    @abstractmethod
    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """Return a new file of `size` bytes, all zero, durable under its name in its folder.

        With `allocated` it has all its blocks. Raises `OSError` (ENOSPC), and leaves no file, if the disk is
        full; raises `BusyError` if the file is not ready in time.
        """

    def sealed(self, path: Path) -> None:
        """Called when a segment is full and will not be written again; must return at once."""

    @abstractmethod
    def discard(self, path: Path, *, in_use: bool = False) -> None:
        """Delete or recycle a segment's file; its name is removed, durably, when this returns.

        With `in_use` a reader may still access its bytes: they must not change, so the file must
        not be reused.
        """

    def close(self) -> None:
        """End background work and remove files created in advance."""


class SegmentInfo(NamedTuple):
    """The facts about one segment for a retention policy.

    Attributes:
        base_offset: the log offset of its first byte.
        size: its bytes.
        last_write_ms: when it was last written, by the time of its file; if that is not plausible, by the next
            segment's.
        path: its file.
        is_ahead: the time of its file is in the future, so `last_write_ms` is another one.
    """

    base_offset: int
    size: int
    last_write_ms: int
    path: Path
    is_ahead: bool = False


class DiskUse(NamedTuple):
    """Bytes used and bytes still usable on the disk of the commit log."""

    used: int
    usable: int


class Vote(NamedTuple):
    """The decision of a retention policy.

    Attributes:
        expired_count: how many of the oldest segments may be deleted; never includes the last one.
        reason: one phrase, for logs and for `retain --dry-run`.
        refuse_writes: puts are refused until a later vote has False here.
    """

    expired_count: int
    reason: str
    refuse_writes: bool = False


class RetentionPolicy(Strategy):
    """Decides which segments may be deleted (`[retention]`). Any number may be configured; the largest vote counts.

    Capabilities: "refuses-writes" (may refuse puts).
    """

    @abstractmethod
    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Return how many of the oldest segments may be deleted, and why. Must not access the disk.

        Args:
            segments: all segments, oldest first.
            now_ms: the time in Unix milliseconds.
            disk: the use of the disk that holds the log.
        """
