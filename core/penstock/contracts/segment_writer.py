"""How bytes reach a segment file, and how files come to be and go."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from penstock._kernel import GatherBuffer, store_records
from penstock.contracts.base import Strategy
from penstock.files import File
from penstock.format.columns import Buffer

# What a writer may use of the compiled kernel: buffers that it fills in one call, and a store of records whose sizes come last.
__all__ = [
    "Allocator",
    "Committer",
    "GatherBuffer",
    "SegmentChannel",
    "SegmentWriter",
    "store_records",
]


class SegmentChannel(ABC):
    """One segment file being written, front to back. One writer; any number of readers of `view`.

    Invariants: a byte below what `commit` returned is in `view` and survives the process;
    a byte below what `flush` returned survives the machine.
    """

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The whole file as readers see it; bytes that were not committed may be missing."""

    @property
    def memory(self) -> memoryview | None:
        """The whole file as writable memory, if single records may be stored there; None if they go by `write`.

        Held until the segment is sealed, or the channel is asked again. Only of a writer that commits at once.
        """
        return None

    @property
    def memory_end(self) -> int:
        """Where stores into `memory` or `gathered` end that cannot run out of room; asked again after each `write` and `reserve`."""
        return 0

    @property
    def gathered(self) -> GatherBuffer | None:
        """Where single records may be put instead of by `write`, below `memory_end`; None if they go by `write`.

        Only of a writer that holds bytes back. `commit` writes what is in there.
        """
        return None

    @property
    def descriptor(self) -> int | None:
        """The file's descriptor, if `fdatasync` of it is all that `flush` does; None if `flush` must be called.

        Then one thread of the kernel's makes the log durable, without the interpreter's lock. Only where nothing has to
        be committed first, or what must be is in `gathered` and written by the same descriptor. The same answer for
        every segment of a store, and the descriptor stays open until `close`.
        """
        return None

    @abstractmethod
    def write(self, position: int, data: Buffer) -> None:
        """Put `data` at `position`; raises `OSError` and leaves nothing that counts when it cannot."""

    def write_batch(self, position: int, data: Buffer, sizes: Sequence[int]) -> None:
        """Put several records at `position`, as `write` does; `sizes` are theirs, empty where nobody knows.

        What a process leaves that is killed meanwhile must be a beginning of them: a sound record behind one
        that is not looks like damage. One copy of several into a map is done in any order, and may not be used here.
        """
        self.write(position, data)

    def reserve(self, stop: int) -> None:  # noqa: B027 - a file with all its blocks has nothing to do
        """See that writing up to byte `stop` cannot run out of room; `OSError` (ENOSPC) if it could.

        Called before the first byte of a batch is written, whose pieces may lie in several segments. A channel
        whose file has not all its blocks must see to it in `write` as well.
        """

    def give_back(self, stop: int) -> None:  # noqa: B027 - as above
        """At a clean close: return the blocks after byte `stop` that were allocated ahead, durably."""

    def end(self) -> None:  # noqa: B027 - most have nothing to do
        """Hear that nothing more will be written; the rest of the file stays zero. Must return at once."""

    @abstractmethod
    def commit(self) -> None:
        """Hand all that was written to the operating system. Runs beside `write`, never beside itself."""

    @abstractmethod
    def flush(self) -> None:
        """Make all that was committed durable; an `OSError` means that nothing is known."""

    def synced(self) -> None:  # noqa: B027 - most have nothing to do
        """Hear that the file was synced by the descriptor that was lent, not by `flush`; from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Let go of file and memory; nothing is flushed by this."""


class Committer(Protocol):
    """The kernel's side of committing, as a writer that holds bytes back uses it. Safe from any thread."""

    @property
    def wrote_offset(self) -> int:
        """Every byte of the log below it was written to a channel."""

    @property
    def committed_offset(self) -> int:
        """Every byte of the log below it was handed to the operating system."""

    def commit(self) -> int:
        """Hand over all that was written, oldest first; returns the new committed offset.

        Raises `StoreFailedError` when the system refuses, and ever after.
        """


class SegmentWriter(Strategy):
    """How appended bytes reach a segment file (`[write]`).

    Capabilities: "mapped" (writes through the map that `File.map` gives, so prefaulting helps),
    "holds-back" (`commits_at_once` is False).

    Attributes:
        needs_allocated_file: the file must have all its blocks before the first write. A store
            through a map into a hole kills the process when the disk is full; for others it moves
            "disk full" from the middle of a record to the roll. A writer that allocates ahead of its
            writes by itself (`SegmentChannel.reserve`, `penstock.files.blocks`) says False.
        commits_at_once: what was written is readable, and survives the process, as soon as `write`
            returns. A writer without it holds bytes back, and commits them by itself from `start` on;
            under a flush policy that waits (`Context.appenders_wait`) it may leave that to the syncs.
    """

    needs_allocated_file: ClassVar[bool] = True
    commits_at_once: bool = True

    def start(self, committer: Committer) -> None:
        """Begin background work; called once, before the first append."""

    @abstractmethod
    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        """Return a channel for `file`, whose first `position` bytes are already written.

        The channel owns the file from then on and closes it. `BusyError` when this cannot be done
        now, but may be later; the caller still owns the file then.
        """

    def close(self) -> None:
        """End background work and let go of what all channels share."""


class Allocator(Strategy):
    """How the next segment file comes to be, and what becomes of an old one (`[alloc]`).

    `obtain` and `expect` are called under the append lock, `discard` and `sealed` from other threads.
    Capabilities: "ahead" (makes expected files in the background), "recycles" (uses discarded
    files again).
    """

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        """Hear which files will be asked for next, nearest first; must return at once."""

    @abstractmethod
    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """Return a new file of `size` bytes, all zero, durable under its name in its folder.

        With `allocated` it has all its blocks. Raises `OSError` (ENOSPC) and leaves no trace if not,
        `BusyError` when it is not there in time.
        """

    def sealed(self, path: Path) -> None:
        """Hear that a segment is full and will not be written again; must return at once."""

    @abstractmethod
    def discard(self, path: Path, *, in_use: bool = False) -> None:
        """Take a segment's file away; its name is gone, durably, when this returns.

        With `in_use` a reader may still look at its bytes: they must not change, so the file must
        not be used again.
        """

    def close(self) -> None:
        """End background work and remove files made in advance."""
