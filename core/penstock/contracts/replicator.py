"""Replicators: the strategies that copy the log of a store that is open for writing to other places."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import attrs

from penstock.contracts.base import Context, Strategy
from penstock.contracts.summary_line import SummaryLine

# The value of `replicate.use` for a store without copies; no strategy has this name.
NO_REPLICATOR = "none"

_MS_PER_S = 1000


class CopyOutcome(StrEnum):
    """What became of the copies that a put waits for.

    Attributes:
        ON_DISK: as many copies as required have the bytes on their disks.
        RECEIVED: as many copies as required have received the bytes, not all of them on disk as far as is known.
        LATE: fewer had answered when the time-out had passed; the others may still receive the bytes.
        NOT_AVAILABLE: fewer copies than required are in sync, so nothing was waited for.
    """

    ON_DISK = "on disk"
    RECEIVED = "received"
    LATE = "late"
    NOT_AVAILABLE = "not available"


@attrs.frozen(kw_only=True)
class CopyState:
    """How far one copy of the log is.

    Attributes:
        name: where it is, such as `127.0.0.1:40312` or a URL without secrets.
        kind: what holds it, such as "rocketmq", "penstock" or "ship".
        received_offset: every byte of the log below it was received there.
        flushed_offset: every byte of the log below it is on disk there; None if the copy does not say that.
        lag_bytes: visible bytes that were not received yet.
        lag_ms: how long ago the oldest of them was stored; 0 if there is none.
        in_sync: whether puts count on this copy.
        last_error: the newest error, also if it is over; None if there was none.
        since_ms: when the connection began, or the last error came if there is no connection; Unix milliseconds.
    """

    name: str
    kind: str
    received_offset: int
    flushed_offset: int | None = None
    lag_bytes: int = 0
    lag_ms: int = 0
    in_sync: bool = True
    last_error: str | None = None
    since_ms: int = 0

    @property
    def text(self) -> str:
        """The state in one line, as `penstock stat` shows it."""
        state = "in sync" if self.in_sync else "not in sync"
        lag = f"{self.lag_bytes} bytes, {self.lag_ms / _MS_PER_S:.1f} s behind"
        error = f"; last error: {self.last_error}" if self.last_error else ""
        return f"{self.kind}, {state}, {lag}{error}"


class LentFile(NamedTuple):
    """A range of bytes in a segment's file, for `os.sendfile`.

    Attributes:
        descriptor: the open file; None if it must be read with `ReplicatedLog.read` (simulated or faulty files).
        position: where the range begins in the file.
        size: how many bytes of it may be read: those below the visible offset, up to the end of the segment.
    """

    descriptor: int | None
    position: int
    size: int


class ReplicatedLog(Protocol):
    """The kernel's interface for replicators. Safe from any thread.

    Readers, and so copies, see the log up to `visible_offset`: under a flush policy whose puts wait, what is durable; otherwise
    what was passed to the operating system. So no copy ever has bytes that a crash of this process takes from this log.
    """

    @property
    def root(self) -> Path:
        """The store's folder."""

    @property
    def segment_bytes(self) -> int:
        """The size of a segment's file; no record crosses its end."""

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that the log still has."""

    @property
    def visible_offset(self) -> int:
        """Every byte of the log below it may be copied; a record ends there."""

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was appended."""

    def read(self, log_offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `log_offset` on: those below the visible offset, up to the end of the segment.

        Raises `OffsetError` if the log does not have that byte: retention has deleted it, or it is after the visible offset. At
        the visible offset itself, returns no bytes.
        """

    def lend_file(self, log_offset: int) -> AbstractContextManager[LentFile]:
        """Lend the file of the segment with that byte; retention does not delete it meanwhile, for at most two minutes.

        Raises `OffsetError` as `read` does.
        """

    def time_ms_at(self, log_offset: int) -> int:
        """Return the store time of the record that begins at `log_offset`, or else of an earlier one near it; 0 if not known."""

    def removed_topics(self) -> Sequence[tuple[str, int]]:
        """Return each removal of a topic, with the log offset before which its records were removed; of one topic ascending."""


class Replicator(Strategy):
    """Copies the log of a store that is open for writing (`[replicate]`). A store has one, or none: `use = "none"`.

    The order of calls: the constructor; `start`, when the store takes puts; any of the other methods, from any thread; `failed`, if
    the store fails; `close`. `copied`, and `advanced`, may be called by a signal handler that interrupted another call of the same
    thread, so they must not wait for a lock that this thread may hold: hand over to your own thread with `collections.deque`,
    `call_soon_threadsafe`, or a pipe. A store that is opened read-only has no replicator.

    Capabilities: "waits" (puts may wait for its copies, if its options say so).

    Attributes:
        appender_waits: whether a put with `wait=True` returns only when it is known what became of its copies. Set in the constructor.
        timeout_ms: how long such a put waits until the outcome is `CopyOutcome.LATE`, and how long `close` may take to
            send what is left. Set in the constructor.
        role: what the store is to its copies, one word for `penstock stat`.
    """

    appender_waits: bool = False
    timeout_ms: int = 3000
    role: str = "master"

    def __init__(self, options: Any, context: Context, log: ReplicatedLog) -> None:
        super().__init__(options, context)
        self.log = log

    def start(self) -> None:
        """Begin to copy. If this raises, the store is not opened."""

    @abstractmethod
    def advanced(self, visible_offset: int) -> None:
        """Called when readers may see the log up to `visible_offset`; must be cheap, and must not raise.

        Called after a round of the tail follower in which the offset has advanced, from any thread, and not for each put. With
        `appender_waits`, each put that waits calls it first. A later call may have a lower offset, which is to be ignored.
        """

    @abstractmethod
    def copied(self, end_offset: int, notify: Callable[[CopyOutcome], None]) -> None:
        """Call `notify` once, with what became of the copies of the bytes below `end_offset`; must not block, and must not raise.

        `notify` may be called at once, and from any thread; it does not block and does not raise. It is called with `LATE` after
        `timeout_ms`, and for every waiter on `close`. If too few copies are in sync it is called at once with `NOT_AVAILABLE`.
        """

    @abstractmethod
    def copies(self) -> Sequence[CopyState]:
        """Return how far each copy is."""

    def failed(self, reason: str) -> None:
        """Called once if the store has failed: it takes no more puts, `visible_offset` stays where it is, and `close` follows."""

    def close(self) -> None:
        """Send what the copies lack for at most `timeout_ms`, then end all work; must not raise. May be called more than once.

        Called after the extensions were detached, when nothing more is appended and everything appended is durable and visible;
        after a failed flush, or if `start` raised, as well. The log can be read until this returns.
        """

    def summary(self) -> Sequence[SummaryLine]:
        """Return lines for `Store.summary()` and `penstock stat`: the role, and one line for each copy."""
        found = self.copies()
        behind = max((each.lag_bytes for each in found), default=0)
        text = f"{self.role} ({self.name}), {_count(len(found))}, {sum(each.in_sync for each in found)} in sync"
        value = {"role": self.role, "use": self.name, "copies": len(found), "lag_bytes": behind}
        lines = [SummaryLine("replication", "replication", text, value)]
        for number, each in enumerate(found):
            lines.append(
                SummaryLine(f"copy_{number}", f"copy {each.name}", each.text, attrs.asdict(each))
            )
        return lines


def _count(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"
