"""Keeps, on a follower, the files of the master until the log that they speak of is on disk."""

from pathlib import Path

from penstock.files import Files
from penstock_replicate.beside.applying import apply
from penstock_replicate.beside.side_names import SIDE_NAMES, check_content


class WaitingSides:
    """The newest content of each file, and the log end that it waits for. Not thread-safe.

    A file that waits is replaced by a newer content only if that waits for the same end or less; otherwise the newer one is kept
    beside it. So a follower that is always a little late still gets files, and at most two contents of each are in memory.

    Args:
        files: the file system.
        root: the store's folder.
    """

    def __init__(self, files: Files, root: Path) -> None:
        self._files, self._root = files, root
        self._next: dict[str, tuple[int, bytes]] = {}
        self._newest: dict[str, tuple[int, bytes]] = {}

    def add(self, name: str, data: bytes, log_end: int) -> None:
        """Take a content that was read when the log ended at `log_end` or before; raises `ValueError` as `apply` does."""
        check_content(name, data)
        following = self._next.get(name)
        if following is None or log_end <= following[0]:
            self._next[name] = log_end, data
            self._newest.pop(name, None)
        else:
            self._newest[name] = log_end, data

    @property
    def first_end(self) -> int | None:
        """The log end that the next file waits for; None if none waits."""
        return min((end for end, _ in self._next.values()), default=None)

    def write(self, flushed_offset: int) -> list[str]:
        """Write the files whose log is on disk, in their order; return the names of those that have changed.

        Raises `StorageError` if the disk fails; then the files that were not written still wait.
        """
        written = []
        for name in SIDE_NAMES:
            due = [
                (waiting[name], waiting)
                for waiting in (self._next, self._newest)
                if name in waiting and waiting[name][0] <= flushed_offset
            ]
            if due and apply(self._files, self._root, name, due[-1][0][1]):
                written.append(name)
            for _, waiting in due:
                del waiting[name]
            if name in self._newest and name not in self._next:
                self._next[name] = self._newest.pop(name)
        return written

    def forget(self) -> None:
        """Drop what waits: another master sends its own."""
        self._next.clear()
        self._newest.clear()
