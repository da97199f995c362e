"""How bytes reach a segment file, and how files come to be and go."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from penstock.columns import Buffer
from penstock.contracts.base import Strategy
from penstock.files import File


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
