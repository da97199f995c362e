"""What each kind of strategy must do.

A strategy is picked by name in the configuration. Its class has a `name`, an `Options` class (frozen
attrs, filled from the strategy's own table of the configuration) and `capabilities`; the kernel makes
one instance a store and passes in files, clock and whatever else it may touch.

A whole third-party flush policy::

    import attrs
    from penstock import FlushPolicy, hookimpl

    @attrs.frozen(kw_only=True)
    class EveryOptions:
        bytes: int = 1_000_000

    class EveryFlush(FlushPolicy):
        "Flushes whenever so many bytes wait."
        name = "every"
        Options = EveryOptions

        def after_append(self, end_offset: int) -> None:
            if end_offset - self.flusher.flushed_offset >= self.options.bytes:
                self.flusher.flush()

    @hookimpl
    def penstock_register_flush():
        return [EveryFlush]
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import attrs

from penstock.batch import DispatchBatch
from penstock.clock import Clock
from penstock.columns import Buffer
from penstock.files import File, Files
from penstock.findings import Checker
from penstock.geometry import Geometry


@attrs.frozen
class NoOptions:
    """Options of a strategy that has none."""


class Stoppable(Protocol):
    """A thread that the kernel started for a strategy."""

    def wake(self) -> None:
        """Make it run its step now."""

    def stop(self) -> None:
        """End it and wait for its last step."""


class SpawnWorker(Protocol):
    """Starts a background thread; in tests it may give one that only runs when told."""

    def __call__(self, name: str, step: Callable[[], float | None]) -> Stoppable:
        """Call `step` at once and again after as many seconds as it returns; None waits for `wake`."""


@attrs.frozen(kw_only=True)
class Context:
    """What the kernel lends every strategy.

    Attributes:
        root: the store's folder.
        files: the only way to the disk.
        clock: the only way to the time.
        geometry: the store's file sizes.
        spawn: starts a background worker.
        read_only: nothing on disk may change, and another process may be writing.
        log_min_offset: tells the first byte that the commit log still has.
    """

    root: Path
    files: Files
    clock: Clock
    geometry: Geometry
    spawn: SpawnWorker
    read_only: bool = False
    log_min_offset: Callable[[], int] = lambda: 0


class Strategy(ABC):
    """Base of every contract: a name for the configuration, options, and named capabilities."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    capabilities: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Any, context: Context) -> None:
        self.options = options
        self.context = context


class SegmentChannel(ABC):
    """One segment file being written, front to back. One writer; any number of readers of `view`.

    Invariants: a byte below what `commit` returned is in `view` and survives the process;
    a byte below what `flush` returned survives the machine.
    """

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The whole file as readers see it; bytes that were not committed may be missing."""

    @abstractmethod
    def write(self, position: int, data: Buffer) -> None:
        """Put `data` at `position`; raises `OSError` and leaves nothing that counts when it cannot."""

    @abstractmethod
    def commit(self) -> None:
        """Hand all that was written to the operating system."""

    @abstractmethod
    def flush(self) -> None:
        """Make all that was committed durable; an `OSError` means that nothing is known."""

    @abstractmethod
    def close(self) -> None:
        """Let go of file and memory; nothing is flushed by this."""


class SegmentWriter(Strategy):
    """How appended bytes reach a segment file (`[write]`).

    Attributes:
        needs_allocated_file: the file must have all its blocks before the first write, because a
            store through a map into a hole kills the process when the disk is full.
        commits_at_once: what was written is readable as soon as `write` returns.
    """

    needs_allocated_file: ClassVar[bool] = True
    commits_at_once: ClassVar[bool] = True

    @abstractmethod
    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """Return a channel for `file`, whose first `position` bytes are already written.

        The channel owns the file from then on and closes it.
        """

    def close(self) -> None:
        """Let go of what all channels share."""


class Allocator(Strategy):
    """How the next segment file comes to be, and what becomes of an old one (`[alloc]`)."""

    @abstractmethod
    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """Return a new file of `size` bytes, all zero, durable under its name in its folder.

        With `allocated` it has all its blocks. Raises `OSError` (ENOSPC) and leaves no trace if not.
        """

    @abstractmethod
    def discard(self, path: Path) -> None:
        """Take an expired segment's file away; its name is gone when this returns."""

    def close(self) -> None:
        """End background work and remove files made in advance."""


class Flusher(Protocol):
    """The kernel's side of flushing, as a policy uses it. Safe from any thread."""

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was handed to the operating system."""

    def flush(self) -> int:
        """Make durable all that is committed and tell the waiters; returns the new flushed offset.

        Raises `StoreFailedError` once a sync has failed, and ever after.
        """


class FlushPolicy(Strategy):
    """Decides when appended bytes become durable (`[flush]`).

    Attributes:
        appender_waits: a put with `wait=True` returns only when its bytes are durable, or in doubt.
        timeout_ms: how long such a put waits before its receipt says `FLUSH_DISK_TIMEOUT`.
    """

    appender_waits: ClassVar[bool] = False
    timeout_ms: int = 5000

    def __init__(self, options: Any, context: Context, flusher: Flusher) -> None:
        super().__init__(options, context)
        self.flusher = flusher

    def start(self) -> None:
        """Begin background work."""

    @abstractmethod
    def after_append(self, end_offset: int) -> None:
        """Called after each append, outside the append lock; must be cheap."""

    def request(self) -> None:
        """Somebody waits for durability: flush soon. Called from any thread."""
        self.flusher.flush()

    def close(self) -> None:
        """End background work; the kernel flushes once more after this."""


class LogView(Protocol):
    """The commit log as a dispatcher may read it while it loads."""

    @property
    def min_offset(self) -> int:
        """The first byte that the log still has."""

    @property
    def end_offset(self) -> int:
        """One past the last sound record."""

    def read(self, log_offset: int, size: int) -> Buffer:
        """Return `size` bytes; `OffsetError` where the log has none."""

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """Return the sound records from `start`, which must begin a record, up to `stop`."""

    def spans(self) -> list[tuple[int, int]]:
        """Return the stretches of bytes the log has, one a segment, oldest first."""


@attrs.frozen(kw_only=True)
class Trust:
    """How far a dispatcher may believe what it finds on disk when a store is opened.

    Attributes:
        log: the recovered commit log; derived files are never trusted over it.
        durable_offset: what the dispatcher's `flush` last answered, or 0 if that is not known:
            entries for records behind it may be torn or missing.
        is_clean: the store was closed well and no file has changed since: all may be believed.
        index_time_ms: the checkpoint's indexMsgTimestamp, which the Java store's rule looks at.
        was_abnormal: the last writer did not close the store.
    """

    log: LogView
    durable_offset: int
    is_clean: bool
    was_abnormal: bool
    index_time_ms: int = 0


class Dispatcher(Strategy):
    """Turns new records into a derived file (`[index]`), and keeps its own progress.

    The kernel hands over batches in log order; batches may come again after a restart, from any
    offset at or below `progress`, and must change nothing then.
    """

    @property
    @abstractmethod
    def progress(self) -> int:
        """Every record below this log offset is in the derived files."""

    @abstractmethod
    def load(self, trust: Trust) -> list[str]:
        """Take stock of the files, cut what is not to be trusted, set `progress`.

        Everything from `progress` on is dispatched again afterwards. Returns one sentence for each
        thing that had to be mended.
        """

    @abstractmethod
    def dispatch(self, batch: DispatchBatch) -> None:
        """Take in a batch and move `progress` to its end; on an error `progress` stays."""

    @abstractmethod
    def flush(self) -> int:
        """Make the derived files durable; returns the log offset below which they are."""

    @abstractmethod
    def truncate(self, log_offset: int) -> None:
        """Forget every record at or behind `log_offset`, and erase what said so."""

    @abstractmethod
    def trim(self, log_offset: int) -> None:
        """Forget what lies before `log_offset`, where retention has cut the log."""

    def checker(self) -> Checker | None:
        """Return what compares the derived files with the log, if this can be done."""
        return None

    def stats(self) -> dict[str, int]:
        """Return figures for `Store.stats()`."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of all files; nothing is flushed by this."""


class QueueEntries(NamedTuple):
    """Entries of one queue as columns: numpy int64 arrays of equal length.

    An entry that is missing inside the range has size 0.
    """

    log_offsets: Any
    sizes: Any
    tag_codes: Any


class QueueIndex(Dispatcher):
    """A dispatcher that knows the order of each queue. Exactly one is configured."""

    @abstractmethod
    def queues(self) -> list[tuple[str, int]]:
        """Return every (topic, queue) there is, sorted."""

    @abstractmethod
    def min_offset(self, topic: str, queue: int) -> int:
        """Return the first queue offset whose record the log still has; 0 for no such queue."""

    @abstractmethod
    def max_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset behind the last entry; 0 for no such queue."""

    @abstractmethod
    def entries(self, topic: str, queue: int, start: int, stop: int) -> QueueEntries:
        """Return the entries [start, stop), fewer where the queue ends or a file is missing."""

    @abstractmethod
    def end_log_offset(self) -> int:
        """Return the log offset behind the newest record that any queue points to; 0 for none."""


class KeyIndex(Dispatcher):
    """A dispatcher that finds records by key."""

    @abstractmethod
    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return log offsets, newest first, of records that may have this key and store time.

        The caller checks topic, key and time in the record. None that matches may be left out.
        """


class SegmentInfo(NamedTuple):
    """What a retention policy is told of a segment, oldest first."""

    base_offset: int
    size: int
    last_write_ms: int
    path: Path


class DiskUse(NamedTuple):
    """Bytes used and bytes still usable on the disk of the commit log."""

    used: int
    usable: int


class Vote(NamedTuple):
    """What a retention policy asks for.

    Attributes:
        expired_count: how many of the oldest segments may go; never the last one.
        reason: one phrase, for logs and for `retain --dry-run`.
        refuse_writes: no message may be put while this stands.
    """

    expired_count: int
    reason: str
    refuse_writes: bool = False


class RetentionPolicy(Strategy):
    """Says which segments may go (`[retention]`). Any number are configured; the largest vote counts."""

    @abstractmethod
    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Return how many of the oldest segments may go, and why. Must not touch the disk."""
