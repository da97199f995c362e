"""The error of an archive: unreachable, of another store, or corrupt."""

from penstock.errors import StorageError


class ArchiveError(StorageError):
    """An archive cannot be used; the message says which object, why, and what to do. The store itself is not affected.

    Attributes:
        archive: the folder or URL, without secrets.
        name: the object below it; empty for the archive as a whole.
        reason: what is wrong.
    """

    def __init__(self, archive: str, name: str, reason: str) -> None:
        self.archive = archive
        self.name = name
        self.reason = reason
        where = f"{archive.rstrip('/')}/{name}" if name else archive
        super().__init__(f"{where}: {reason}")


class OtherLogError(ArchiveError):
    """An archive holds the log of another store, or has another owner: nothing was written to it."""


class RestoreError(StorageError):
    """A store could not be restored; the message says why, and what is left at the target."""
