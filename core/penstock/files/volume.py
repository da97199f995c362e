"""A file system that is synced as a whole (`syncfs`), in place of thousands of single files.

Such a sync replaces the sync of each file and folder only if all of the following holds. Otherwise `open_volume`
returns None, and callers sync file by file:

    * Linux 5.8 or later. Before that, `syncfs` reported success even if the write-back had failed.
    * ext2, ext3, ext4, XFS, Btrfs or tmpfs. Others may not report failures: overlayfs syncs the file system below it,
      and does not report which of its writes have failed.
    * The volume was opened before the first write that it makes durable. The system reports a failed write-back once
      to each descriptor that was open when it happened; if there was none, to the first one opened later.

So a failure of another program's file on the same disk may be reported to Penstock as well. It is treated as a failure
of the store: a disk that fails writes cannot be trusted, and a store that stops loses nothing.

On XFS, a write over bytes that already have blocks may not change the journal, and then `syncfs` does not flush the
disk's own cache. `fdatasync` of any file does, so callers call that for one of their files afterwards.
"""

import ctypes
import os
from pathlib import Path

from penstock.files.file import open_descriptor, system_error

# The `statfs` types of ext2 to ext4, XFS, Btrfs and tmpfs (linux/magic.h).
_REPORTING = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
_LINUX_MIN = (5, 8)
# Network and user-space file systems, by their `statfs` type: locks and syncs depend on another machine or program.
_REMOTE = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x65735546: "fuse",
    0x5346414F: "afs",
    0x6B414653: "kafs",
    0x00C36400: "ceph",
    0x73757245: "coda",
    0x564C: "ncp",
    0x0BD00BD0: "lustre",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x786F4256: "vboxsf",
    0x7C7C6673: "prlfs",
    0xBACBACBC: "vmhgfs",
}
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
        """Return whether a file or folder is on this volume: another may be mounted below a folder."""
        return os.lstat(path).st_dev == self._device

    def sync(self) -> None:
        """Make durable everything written before to any file or folder on this volume, including names.

        Raises:
            OSError: the sync failed, or a write-back has failed since the volume was opened.
        """
        if _libc.syncfs(self._fd) != 0:
            raise system_error(self.path)

    def detach(self) -> int:
        """Return the descriptor, which the caller must close; this object is closed then."""
        descriptor, self._fd = self._fd, -1
        return descriptor

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; nothing is synced."""
        descriptor = self.detach()
        if descriptor >= 0:
            os.close(descriptor)


def open_volume(folder: Path) -> Volume | None:
    """Return the file system that holds a folder; None if a sync of the whole would not report failures."""
    if not _reports_failures(os.uname().release):
        return None
    descriptor = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if _type_of(descriptor) not in _REPORTING:
        os.close(descriptor)
        return None
    return Volume(folder, descriptor)


def remote_kind(folder: Path) -> str | None:
    """Return the name of a folder's file system if it is a network or user-space one, such as "nfs"; else None."""
    descriptor = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return _REMOTE.get(_type_of(descriptor))
    finally:
        os.close(descriptor)


def _reports_failures(release: str) -> bool:
    """Return whether `syncfs` reports failed write-backs in a release of Linux, such as "6.1.0-13-amd64"."""
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
