"""The contract of replicators, which copy the log of a store that is open for writing, and what they share with it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import attrs

from penstock.contracts.base import Context, Strategy

# The value of `replicate.use` for a store without copies.
NO_REPLICATOR = "none"


class Epoch(NamedTuple):
    """A part of the log that one process wrote, from `start` to the start of the next epoch.

    Attributes:
        number: increases with each promotion of a copy.
        opening: increases, within a number, with each opening after which bytes may be missing that were copied.
        start: the log offset where the part begins.
        by: the id of the store whose process wrote it.
    """

    number: int
    opening: int
    start: int
    by: str


@attrs.frozen(kw_only=True)
class Replica:
    """The identity of a store that copies its log or is a copy, as in `penstock/replica`.

    Attributes:
        history: 32 hexadecimal digits, common to all copies of one log.
        store: 16 hexadecimal digits, different in each copy.
        role: "master" (takes puts) or "follower" (takes records from a master only).
        master: "HOST:PORT" of the master that a follower has followed last; None for a master.
        protocol: the protocol of that master, for example "penstock"; None for a master.
        epochs: the parts of the log, oldest first. The list may begin after the log's begin.
    """

    history: str
    store: str
    role: str
    master: str | None = None
    protocol: str | None = None
    epochs: tuple[Epoch, ...] = ()


@attrs.frozen(kw_only=True)
class FollowBegin:
    """What a new copy needs to begin, as its master has told it.

    Attributes:
        segment_bytes: the size of the master's segments; None: it has not told, and the configured size must be it.
        log_offset: where the copy's log begins: the begin of one of the master's segments.
    """

    segment_bytes: int | None
    log_offset: int


class LogBell(Protocol):
    """Wakes an event loop when a log has advanced. Safe from any thread."""

    def fileno(self) -> int:
        """Return a file descriptor that is readable after the log has advanced."""

    def answer(self) -> None:
        """Make the descriptor unreadable; call it before looking at the log."""


class ReplicatedLog(Protocol):
    """The kernel's interface for replicators. Safe from any thread.

    Attributes:
        root: the store's folder.
        segment_bytes: the size of its segments.
        puts_wait: a put with `wait=True` returns when its bytes are durable here (`FlushPolicy.waits`).
        replica: the store's identity.
        removed_topics: as JSON values: topic to the log offset before which its records are removed, and how often it
            was. Replaced, never changed in place, before a later record of that topic is visible.
    """

    root: Path
    segment_bytes: int
    puts_wait: bool
    replica: Replica
    removed_topics: Mapping[str, Any]

    @property
    def bell(self) -> LogBell:
        """Rings when `visible_offset` or `missed_offset` has moved."""

    @property
    def min_offset(self) -> int:
        """The log offset of the first byte that the log still has."""

    @property
    def visible_offset(self) -> int:
        """Every record before it may be read, and copied. Under a flush policy that waits, all of it is durable."""

    @property
    def missed_offset(self) -> int:
        """The end of the last put that waited for copies and timed out; 0 if none has."""

    def read(self, log_offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `log_offset` on: all are visible, and in one segment.

        Returns nothing at `visible_offset`. Raises `OffsetError` before `min_offset` and after `visible_offset`.
        """

    def recent(self, log_offset: int, size: int) -> bytes:
        """Return what `read` does if those bytes were just written, and are in memory; otherwise nothing.

        It waits for no disk.
        """

    def digest(self, start: int, stop: int) -> bytes:
        """Return the SHA-256 of the bytes from `start` to `stop`; raises `OffsetError` if not all are visible."""

    def ranges(self) -> Mapping[str, Any]:
        """Return which parts of the log Penstock wrote, with which checksums, as JSON values for a copy."""

    def lone_ends(self) -> Sequence[Sequence[Any]]:
        """Return the ends of queues without records (`QueueReader.lone_ends`), as JSON values."""

    def reach(self, log_offset: int, *, available: bool, missed: int) -> None:
        """State that enough distinct stores have every byte before `log_offset`.

        Args:
            log_offset: may be lower than before, which changes nothing.
            available: enough copies are in sync, so a put may wait for them.
            missed: the `missed_offset` at which that was judged. If a later put has timed out since, `available` is
                taken as False.
        """

    def publish(self, status: Mapping[str, Any]) -> None:
        """Note the status for other processes, as JSON values; the kernel writes the last one within a second."""


class Replicator(Strategy):
    """Copies the log of a store that is open for writing (`[replicate]`).

    Attributes:
        waits: a put with `wait=True` waits for copies: until `ReplicatedLog.reach` has passed its end.
        wait_for: the meaning of `reach`: "disk", the copies have synced the bytes, or "received". It decides the
            durability that receipts state.
        timeout_ms: how long a put waits for copies before its receipt has the status `FLUSH_SLAVE_TIMEOUT`.
    """

    waits: bool = False
    wait_for: str = "received"
    timeout_ms: int = 3000

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context)
        self.log = log

    def start(self) -> None:
        """Begin to serve copies. If it raises, the store is not opened."""

    @abstractmethod
    def advanced(self) -> None:
        """Look at the log: `visible_offset` or `missed_offset` has moved.

        Called only in a store whose workers run only when called, where nobody reads the bell.
        """

    def failed(self, reason: str) -> None:
        """Called once when the store has failed: nothing more becomes visible."""

    def close(self) -> None:
        """Send what is left for at most `timeout_ms`, end all connections and threads. Must not raise; idempotent.

        In a store that closes cleanly, everything is visible by then; the log can be read until this returns. Threads
        that `Context.spawn` has started have ended before. After an interrupt it is called again.
        """
