"""A store that follows another one: its log takes only bytes that the other store's log has, at the same log offsets."""

import os
from pathlib import Path
from typing import Any

from penstock.durability.replica_file import Replica
from penstock.durability.written_ranges import Ranges
from penstock.errors import StoreFailedError
from penstock.files import Files
from penstock.format.columns import Buffer
from penstock.recovery.log_end import RecoveryReport
from penstock.runtime.clock import Clock


def open_follower(
    path: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    *,
    replica: Replica | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
    segment_bytes: int | None = None,
    **settings: Any,
) -> "FollowedStore":
    """Open the store at `path` to append copied bytes to its log; creates it if there is none.

    Args:
        path: the store's folder.
        config: a TOML file, as for `penstock.open`.
        replica: written durably, under the store's lock, before anything else changes; its role must be follower. None: the
            store must be a follower already, or never have been replicated; then it becomes one of a new history.
        files: the file system.
        clock: the clock.
        segment_bytes: the size of the log's segments, which must be the master's; an existing store must have the same.
        settings: as for `penstock.open`.
    """
    raise NotImplementedError


class FollowedStore:
    """A store that is open for copied bytes. One thread at a time appends; the properties are safe from any thread."""

    root: Path
    files: Files
    clock: Clock
    recovery: RecoveryReport
    segment_bytes: int

    @property
    def replica(self) -> Replica:
        """The store's role, history and epochs."""
        raise NotImplementedError

    def note_replica(self, replica: Replica) -> None:
        """Write the role, history and epochs durably; the role must stay follower."""
        raise NotImplementedError

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that is there; 0 if the log is empty and did not begin elsewhere."""
        raise NotImplementedError

    @property
    def end_offset(self) -> int:
        """Log offset after the last whole record."""
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """Log offset of the next byte that `feed` takes: `end_offset` and the bytes of a record that is not whole."""
        raise NotImplementedError

    @property
    def visible_offset(self) -> int:
        """Log offset up to which records are in queues and index."""
        raise NotImplementedError

    @property
    def flushed_offset(self) -> int:
        """Every byte of the log below it is durable."""
        raise NotImplementedError

    @property
    def failure(self) -> StoreFailedError | None:
        """Why the store takes no more bytes; None if it does."""
        raise NotImplementedError

    def begin_at(self, log_offset: int) -> None:
        """Let an empty log begin at a segment border."""
        raise NotImplementedError

    def append(self, log_offset: int, data: Buffer) -> int:
        """Append whole records, and filler at segment ends; returns the new end."""
        raise NotImplementedError

    def feed(self, log_offset: int, data: Buffer) -> int:
        """Append bytes that may begin and end within a record, in order; returns the new end of whole records."""
        raise NotImplementedError

    def forget_waiting(self) -> None:
        """Forget the bytes of a record that is not whole, as after a lost connection."""
        raise NotImplementedError

    def flush(self) -> int:
        """Make everything appended durable; returns the log offset reached."""
        raise NotImplementedError

    def digest(self, start: int, stop: int) -> bytes:
        """Return the SHA-256 of the log's bytes in [start, stop)."""
        raise NotImplementedError

    def read(self, log_offset: int, size: int) -> bytes:
        """Return bytes of the log, at most to the end of their segment or of the log."""
        raise NotImplementedError

    def cut(self, log_offset: int) -> Path | None:
        """Cut the log at the beginning of a record; returns the folder or file with the bytes that were cut off."""
        raise NotImplementedError

    def remove_topic(self, topic: str, before: int) -> None:
        """Remove a topic with its records before the log's end, which must be `before`."""
        raise NotImplementedError

    def note_coverage(self, told: Ranges) -> None:
        """Record which ranges of the master's log it wrote itself, and with which checksums."""
        raise NotImplementedError

    def promote(self) -> Replica:
        """Close the store and make it a master, in a new epoch that begins at its end."""
        raise NotImplementedError

    def stats(self) -> dict[str, object]:
        """Return the figures of the store."""
        raise NotImplementedError

    def close(self) -> None:
        """Close cleanly; a second call does nothing."""
        raise NotImplementedError
