"""Paths and folders. Besides `file`, `volume` and `lock_file`, only this module calls the operating system for files.

Everything else gets a `Files` through its constructor, so that a test can pass one that fails, loses
unsynced bytes, or counts calls.

Assumptions about the medium:
    * After `File.sync` returns, the bytes written before it are durable. After it fails, nothing is
      known about them (the kernel marks failed pages clean), so a second sync that succeeds proves nothing.
    * A file or a rename is durable only after `Files.sync_folder` on its folder.
    * A memory write through a map into bytes that were never allocated kills the process when the disk is
      full (SIGBUS). `File.allocate` and `File.allocate_range` raise ENOSPC instead, so bytes are
      allocated before they are written through a map (see `blocks`).

Links are never followed below a store's folder, and only regular files are opened.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StorageError
from penstock.files import lock_file
from penstock.files.file import File, address_of, open_descriptor, system_error
from penstock.files.lock_file import Lock
from penstock.files.volume import Volume, open_volume, remote_kind

__all__ = ["FILE_MODE", "FOLDER_MODE", "Entry", "File", "Files", "Listed", "Lock", "Volume"]

FILE_MODE = 0o600
# Of a process that lacks a right, or has reached a limit: another attempt may read the file.
_NOT_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
FOLDER_MODE = 0o700

_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.mlock, _libc.munlock):
    _call.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Entry(NamedTuple):
    """One name in a folder. `size` is in bytes, `mtime_ns` in Unix nanoseconds."""

    name: str
    path: Path
    is_file: bool
    is_folder: bool
    size: int
    mtime_ns: int


class Listed(NamedTuple):
    """One name in a folder, without its path; size and time of a folder are 0."""

    name: str
    is_file: bool
    is_folder: bool
    size: int
    mtime_ns: int


class Files:
    """The file system as Penstock uses it. Safe from any thread.

    Args:
        mode: the exact permissions of new files, independent of the umask; a user who may read the files may enter the
            folders. None gives access to the owner only, less what the umask removes.
    """

    # Class attributes, for subclasses whose constructor does not set them.
    _mode: int | None = None
    _anchors: frozenset[Path] = frozenset()

    def __init__(self, mode: int | None = None) -> None:
        self._mode = mode

    def _permit(self, target: int | Path, *, is_folder: bool) -> None:
        if self._mode is not None:
            wanted = self._mode | (self._mode & 0o444) >> 2 if is_folder else self._mode
            # Not changed if it is right: a changed lock file would make the store look like a copy.
            if stat.S_IMODE(os.stat(target).st_mode) != wanted:
                os.chmod(target, wanted)

    def open(self, path: Path, *, writable: bool = False) -> File:
        """Open an existing regular file; raises `OSError` for a link, a folder or a device."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW
        # A FIFO would block the open for ever without O_NONBLOCK; it has no effect on regular files.
        try:
            descriptor = open_descriptor(path, flags | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, "a link, which is not followed", str(path)) from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return File(path, descriptor)

    def create(self, path: Path) -> File:
        """Create an empty file; raises `FileExistsError` if it exists."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = File(path, open_descriptor(path, flags, FILE_MODE))
        self._permit(file._fd, is_folder=False)
        return file

    def entries(self, folder: Path) -> list[Entry]:
        """Return what is in `folder`, sorted by name; a link is neither file nor folder."""
        return sorted(self._scan(folder))

    def _scan(self, folder: Path) -> Iterator[Entry]:
        with os.scandir(folder) as names:
            for item in names:
                try:
                    about = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # Another process has just removed it.
                    continue
                is_file, is_folder = stat.S_ISREG(about.st_mode), stat.S_ISDIR(about.st_mode)
                size, mtime_ns = about.st_size, about.st_mtime_ns
                yield Entry(item.name, Path(item.path), is_file, is_folder, size, mtime_ns)

    def listing(self, folder: str) -> list[Listed]:
        """Return what is in `folder`, sorted by name; a link is neither file nor folder.

        The same facts as `entries`, but faster, for callers that list a hundred thousand folders; likewise `folders`
        and `numbered`. A subclass that replaces `entries` must replace all four.
        """
        found = []
        with os.scandir(folder) as names:
            for item in names:
                if item.is_dir(follow_symlinks=False):
                    found.append(Listed(item.name, False, True, 0, 0))
                    continue
                try:
                    about = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # Another process has just removed it.
                    continue
                is_file = stat.S_ISREG(about.st_mode)
                found.append(Listed(item.name, is_file, False, about.st_size, about.st_mtime_ns))
        return sorted(found)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in `folder`, sorted; a link is not a folder."""
        with os.scandir(folder) as names:
            return sorted(item.name for item in names if item.is_dir(follow_symlinks=False))

    def numbered(self, folder: str) -> list[tuple[int, int]]:
        """Return number and size of the regular files in `folder` whose names are digits, sorted."""
        found = []
        with os.scandir(folder) as names:
            for item in names:
                if item.name.isascii() and item.name.isdigit():
                    with contextlib.suppress(FileNotFoundError):
                        about = item.stat(follow_symlinks=False)
                        if stat.S_ISREG(about.st_mode):
                            found.append((int(item.name), about.st_size))
        return sorted(found)

    def exists(self, path: Path) -> bool:
        """Return whether anything, even a dangling link, has that name."""
        return os.path.lexists(path)

    def mtime_ns(self, path: Path) -> int:
        """Return when a file was last written, in Unix nanoseconds; 0 if there is no such file."""
        try:
            return os.lstat(path).st_mtime_ns
        except FileNotFoundError:
            return 0

    def ctime_ns(self, path: Path) -> int:
        """Return when a file's inode was created or last changed, in Unix nanoseconds; 0 if there is no such file."""
        try:
            return os.lstat(path).st_ctime_ns
        except FileNotFoundError:
            return 0

    def version(self, path: Path) -> tuple[int, int, int]:
        """Return a file's time of last write, inode and size, which show whether it changed; zeros if it is missing."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return 0, 0, 0
        return found.st_mtime_ns, found.st_ino, found.st_size

    def inode(self, path: Path) -> int:
        """Return the inode number of the file that has this name; 0 if there is no such file."""
        try:
            return os.stat(path).st_ino
        except FileNotFoundError:
            return 0

    def has_other_names(self, path: Path) -> bool:
        """Return whether a file has a second name, for example in a backup made of hard links."""
        return os.lstat(path).st_nlink > 1

    def is_folder(self, path: Path) -> bool:
        """Return whether `path` is a folder itself, not a link to one."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def followed(self, path: Path) -> Path:
        """Return the folder that a link leads to; any other path, and a link that leads nowhere, as it is."""
        is_link = os.path.islink(path) and os.path.isdir(path)
        return Path(os.path.realpath(path)) if is_link else path

    def anchor(self, root: Path) -> None:
        """Let `make_folder` never create a store's folder as a missing parent: the store may have been moved."""
        self._anchors |= {root}

    def make_folder(self, path: Path) -> list[Path]:
        """Create `path` and its missing parents; return the folders in which a new name was created.

        Another process may create the same folder at the same time. The returned folders are not synced; a caller that
        does not sync them uses `make_folder_durably`. Raises `FileNotFoundError` if an anchor is among the missing
        parents.
        """
        if self.is_folder(path):
            return []
        is_missing = not path.parent.exists()
        if is_missing and path.parent in self._anchors:
            raise FileNotFoundError(
                errno.ENOENT, "the store was moved or removed", str(path.parent)
            )
        changed = self.make_folder(path.parent) if is_missing else []
        try:
            os.mkdir(path, FOLDER_MODE)
        except FileExistsError:
            if not self.is_folder(path):
                raise
        else:
            self._permit(path, is_folder=True)
        return [*changed, path.parent]

    def make_folder_durably(self, path: Path) -> None:
        """Create `path` and its missing parents durably."""
        for folder in self.make_folder(path):
            self.sync_folder(folder)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def volume(self, folder: Path) -> Volume | None:
        """Return the file system that holds a folder, to be synced as a whole; None if such a sync may hide failures.

        It must be opened before the first write that it makes durable; see `penstock.files.volume`.
        """
        return open_volume(folder)

    def remote_kind(self, folder: Path) -> str | None:
        """Return which network or user-space file system holds a folder, such as "nfs"; None if it is a local one."""
        return remote_kind(folder)

    def remove(self, path: Path) -> None:
        """Remove a name."""
        os.unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically; an existing target is replaced."""
        os.rename(source, target)

    def read_whole(self, path: Path, limit: int = 64 << 20) -> bytes:
        """Return the content of a small file; raises `OSError` (EFBIG) if it is larger than `limit` bytes."""
        with self.open(path) as file:
            size = file.size
            if size > limit:
                raise OSError(errno.EFBIG, f"{size} bytes, the limit is {limit}", str(path))
            return file.pread(size, 0)

    def read_state(self, path: Path, limit: int = 64 << 20) -> bytes:
        """Like `read_whole`, for a file without which the store would do something else than it has promised.

        Raises `StorageError` if this process cannot read it now: its content may be right, and is not to be replaced.
        """
        try:
            return self.read_whole(path, limit)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                raise
            raise StorageError(
                f"{path} cannot be read now ({error.strerror}); it was not changed. Let this process read it (chown, "
                "chmod), or raise its limits (ulimit -n), and try again"
            ) from error

    def unused(self, path: Path) -> Path:
        """Return `path` with the first suffix `-1`, `-2`, ... that is not in use."""
        number = 1
        while self.exists(path.with_name(f"{path.name}-{number}")):
            number += 1
        return path.with_name(f"{path.name}-{number}")

    def write_whole(self, path: Path, data: bytes, fresh: Path | None = None) -> None:
        """Write a small file atomically and durably: a crash leaves the old content or the new.

        It is first written as `fresh`, by default beside it with `.new` after its name.
        """
        fresh = fresh or path.with_name(path.name + ".new")
        if self.exists(fresh):
            self.remove(fresh)
        file = self.create(fresh)
        try:
            file.pwrite(data, 0)
            file.sync_all()
            self.rename(fresh, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.remove(fresh)
            raise
        finally:
            file.close()
        self.sync_folder(path.parent)

    def lock(self, path: Path) -> Lock | None:
        """Take the store's lock without waiting; return None if it is held already."""
        lock = lock_file.take(path, FILE_MODE)
        if lock is not None:
            self._permit(path, is_folder=False)
        return lock

    def lock_one(self, path: Path) -> Lock | None:
        """Take a lock of one file, which is created if it is missing; return None if it is held already."""
        lock = lock_file.take_file(path, FILE_MODE)
        if lock is not None:
            # Of another owner, or removed meanwhile.
            with contextlib.suppress(OSError):
                self._permit(path, is_folder=False)
        return lock

    def lock_held_here(self, path: Path) -> Lock | None:
        """Return the lock of that file which this process holds; None if it holds none."""
        return lock_file.held_here(path)

    def lock_owner(self, path: Path) -> int | None:
        """Return the process that holds the lock as a Java broker does; None if none does, or Penstock holds it."""
        return lock_file.owner(path)

    @property
    def descriptors_max(self) -> int:
        """The maximum number of descriptors of the process (`ulimit -n`)."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return limit if limit != resource.RLIM_INFINITY else 1 << 20

    def is_locked(self, path: Path) -> bool:
        """Return whether the store's lock is held, without taking or changing it."""
        return lock_file.is_taken(path)

    def memory(self, size: int) -> mmap.mmap:
        """Return zeroed anonymous memory of `size` bytes."""
        return mmap.mmap(-1, size)

    def lock_memory(self, memory: mmap.mmap) -> None:
        """Keep a map's pages in memory (`mlock`); raises `OSError` (ENOMEM, EPERM) if the limit forbids it."""
        if _libc.mlock(address_of(memory), len(memory)) != 0:
            raise system_error()

    def unlock_memory(self, memory: mmap.mmap) -> None:
        """Undo `lock_memory`."""
        _libc.munlock(address_of(memory), len(memory))

    def free_bytes(self, path: Path) -> tuple[int, int]:
        """Return the bytes used and the bytes still usable on the disk that holds `path`."""
        about = os.statvfs(path)
        used = (about.f_blocks - about.f_bfree) * about.f_frsize
        return used, about.f_bavail * about.f_frsize

    def process_id(self) -> int:
        """Return this process's number, for messages that name the holder of a lock."""
        return os.getpid()

    def boot_id(self) -> bytes:
        """Return the system's identifier of the current boot; empty if there is none."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        except OSError:
            return b""
