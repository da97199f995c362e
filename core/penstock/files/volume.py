"""A file system, synced as a whole (`syncfs`) in place of thousands of files one by one.

One such sync is as good as one of each file and folder only where all of this holds; elsewhere `open_volume`
returns None, and callers sync file by file:

    * Linux 5.8 or later. Before that, `syncfs` answered success whatever became of the write-back.
    * ext2, ext3, ext4, XFS, Btrfs or tmpfs. Others need not report: overlayfs syncs the file system below it, and
      does not pass on which of its writes have failed.
    * The volume was opened before the first write that it is to speak of. The system tells a failed write-back once
      to each descriptor that was open when it happened, and to the first one opened later if nobody was told yet.

So a failure of another program's file on the same disk may be told to us as well. It counts as ours: a disk that
fails writes is not to be trusted, and a store that stops loses nothing.

On XFS a write over bytes that have blocks already may leave the journal as it is, and then `syncfs` does not flush the
disk's own cache. `fdatasync` of any file does: callers do that to one of their files afterwards.
"""

import ctypes
import os
from pathlib import Path

from penstock.files.file import system_error

# What `statfs` calls ext2 to ext4, XFS, Btrfs and tmpfs (linux/magic.h).
_REPORTING = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
_LINUX_MIN = (5, 8)
# Larger than `struct statfs` is on any machine; its first field is the type, a C long.
_STATFS_BYTES = 256

_libc = ctypes.CDLL(None, use_errno=True)


class Volume:
    """The file system that holds a folder. Safe from any thread, except for `close`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor
        self._device = os.fstat(descriptor).st_dev

    def holds(self, path: str) -> bool:
        """Say whether a file or folder lies on it: another may be mounted below a folder."""
        return os.lstat(path).st_dev == self._device

    def sync(self) -> None:
        """Make durable what was written before to any file or folder on it, names too.

        Raises:
            OSError: that failed, or a write-back since the volume was opened.
        """
        if _libc.syncfs(self._fd) != 0:
            raise system_error(self.path)

    def detach(self) -> int:
        """Give the descriptor away; this object is closed then."""
        descriptor, self._fd = self._fd, -1
        return descriptor

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; nothing is synced by this."""
        descriptor = self.detach()
        if descriptor >= 0:
            os.close(descriptor)


def open_volume(folder: Path) -> Volume | None:
    """Return the file system that holds a folder; None where a sync of the whole would not tell of failures."""
    if not _reports_failures(os.uname().release):
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    if _type_of(descriptor) not in _REPORTING:
        os.close(descriptor)
        return None
    return Volume(folder, descriptor)


def _reports_failures(release: str) -> bool:
    """Say whether a release of Linux ("6.1.0-13-amd64") is one whose `syncfs` reports failed write-backs."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return False
    return (int(major), int(minor)) >= _LINUX_MIN


def _type_of(descriptor: int) -> int:
    about = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, about) != 0:
        raise system_error()
    return ctypes.c_long.from_buffer(about).value & 0xFFFFFFFF
