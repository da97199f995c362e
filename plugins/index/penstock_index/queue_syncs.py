"""Makes queue files and their folders durable: one by one, or their whole file system if there are many.

A store of 20,000 queues that each got one message has 20,000 files and as many folders to sync, and each sync costs a
commit of the journal. One sync of the file system writes them all in the order that suits the disk, and commits
once; it also waits for other programs' writes there. `penstock.files.volume` describes when it is as safe as separate
syncs.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from penstock.files import Files, Volume
from penstock_index.queue_files import OpenFiles


class Syncs:
    """Syncs the files that one dispatcher has written.

    Args:
        files: the file system.
        pool: opens the queue files.
        volume_from: from this number of files and folders on, they are synced together, as a volume; 0 for never.

    Safe from any thread, except for `begin` and `close`.
    """

    def __init__(self, files: Files, pool: OpenFiles, volume_from: int) -> None:
        self._files = files
        self._pool = pool
        self._volume_from = volume_from
        self._volume: Volume | None = None

    def begin(self, folder: Path) -> None:
        """Open the file system of a folder, before the first write below it."""
        if self._volume_from and self._volume is None:
            self._volume = self._files.volume(folder)

    def sync(self, files: Collection[Path], folders: Collection[Path]) -> None:
        """Make files and folders durable; what was removed meanwhile needs no sync. Raises `OSError` on failure."""
        volume = self._volume
        # Sorted, so that a replay of a crash has the same order.
        left, folders_left = sorted(files, key=str), sorted(folders, key=str)
        if volume is not None and len(files) + len(folders) >= self._volume_from:
            volume.sync()
            # Sync the last file separately, on any volume: this flushes the disk's own cache (see `files.volume`).
            left = [path for path in left[:-1] if not _is_on(volume, path)] + left[-1:]
            folders_left = [path for path in folders_left if not _is_on(volume, path)]
        for path in left:
            self._pool.sync(path)
        for folder in folders_left:
            # Removed with its topic, meanwhile: that its name is gone is for a sync of the folder above.
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_folder(folder)

    def close(self) -> None:
        """Close the file system."""
        if self._volume is not None:
            self._volume.close()
            self._volume = None


def _is_on(volume: Volume, path: Path) -> bool:
    """Return whether a file or folder is on a volume; True for a removed one, which needs no sync."""
    try:
        return volume.holds(str(path))
    except FileNotFoundError:
        return True
