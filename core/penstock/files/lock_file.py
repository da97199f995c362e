"""The store's lock: who may write, who holds it, and what happens to it in a forked child.

Two locks are taken together, both without waiting:
    * an open-file-description lock on byte 0 of the lock file, the byte that the Java store locks. It excludes Java's
      lock and is excluded by it. It is kept when another descriptor of the file is closed, and it refuses a second open
      in the same process;
    * a `flock` of the store's folder, which holds even if the lock file is removed.

A forked child shares its parent's locks, and would keep them after the parent has ended. So it closes its own
descriptors at once, which does not affect the parent. Other objects that must not be used in a child register
with `leave_in_child`. A fork waits while another thread opens a lock file: the child would not know its descriptor.
"""

import contextlib
import errno
import fcntl
import os
import struct
import threading
import weakref
from pathlib import Path
from typing import Protocol

from penstock.files.file import open_descriptor

# struct flock on 64-bit Linux: type, whence, start, length, pid (must be 0 for an OFD lock).
_FLOCK = struct.Struct("hhqqi4x")


class Leaving(Protocol):
    """An object that must release resources in a forked child."""

    def leave(self) -> None:
        """In a child, release what belongs to the parent; must not write anything."""


_to_leave: "weakref.WeakSet[Leaving]" = weakref.WeakSet()
# Held from the opening of a descriptor until a `Lock` owns it, and by a fork. Reentrant: a signal handler may fork.
_opening = threading.RLock()


def leave_in_child(one: Leaving) -> None:
    """Arrange that `one.leave()` is called in every child that this process forks while `one` exists."""
    _to_leave.add(one)


def _leave_in_child() -> None:
    # All of them, also if one raises: a lock that is kept outlives the parent.
    with contextlib.ExitStack() as stack:
        stack.callback(_opening.release)
        for one in list(_to_leave):
            stack.callback(one.leave)


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_leave_in_child
)


class Lock:
    """An exclusive lock on a store, held until `release`, or until the object is deleted."""

    def __init__(self, descriptor: int, folder: int = -1) -> None:
        self._fds = [fd for fd in (descriptor, folder) if fd >= 0]
        self._fd = descriptor
        self._process = os.getpid()
        # Where the program opened what is locked, for the error of a second open.
        self.opened_at = ""
        leave_in_child(self)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._fds and os.getpid() == self._process:
            # Closing alone would leave the lock held by a child that has not closed the descriptor.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK))
            for fd in self._fds[1:]:
                fcntl.flock(fd, fcntl.LOCK_UN)
        self.leave()

    def has_name(self, path: Path) -> bool:
        """Return whether the locked file is at `path`; False once it was removed or replaced, or the lock released.

        A program that removes lock files can do so between the opening and the locking of another one: both would then
        hold a lock of "the" file.
        """
        if not self._fds:
            return False
        try:
            return os.path.samestat(path.lstat(), os.fstat(self._fd))
        except OSError as error:
            # The file is gone, or another thread has just released the lock.
            if error.errno in (errno.ENOENT, errno.EBADF):
                return False
            raise

    def leave(self) -> None:
        """Close the descriptors only: in a child, the lock itself belongs to the parent."""
        while self._fds:
            os.close(self._fds.pop())

    def __del__(self) -> None:
        # An interrupt may come after the lock is taken and before the caller has stored it.
        self.release()


def _request(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0)


def _open(path: Path, mode: int) -> int:
    return open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)


def take(path: Path, mode: int) -> Lock | None:
    """Take the lock of the store whose lock file is `path`, without waiting; return None if it is held already."""
    with _opening:
        lock = Lock(_open(path, mode), open_descriptor(path.parent, os.O_RDONLY | os.O_DIRECTORY))
    return _taken(lock)


def take_file(path: Path, mode: int) -> Lock | None:
    """Take a lock of one file, which is created if it is missing; return None if it is held already."""
    with _opening:
        lock = Lock(_open(path, mode))
    return _taken(lock)


def _taken(lock: Lock) -> Lock | None:
    """Lock the first descriptor as a file, and others as folders; return None if one is locked already."""
    file, *folders = lock._fds
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
        for folder in folders:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.release()
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return lock


def held_here(path: Path) -> Lock | None:
    """Return the lock that this process holds of the file at `path`; None if it holds none."""
    held = (one for one in list(_to_leave) if isinstance(one, Lock) and one.has_name(path))
    return next(held, None)


def _get_holder(path: Path) -> tuple[bool, int]:
    """Return whether the lock is held, and by which process, as far as the system reports it."""
    # A read-only descriptor suffices to ask whether a lock would be refused.
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK))
    finally:
        os.close(descriptor)
    kind, _, _, _, process = _FLOCK.unpack(answer)
    return kind != fcntl.F_UNLCK, process


def is_taken(path: Path) -> bool:
    """Return whether the lock is held; nothing is changed."""
    try:
        return _get_holder(path)[0]
    except OSError:
        return False


def owner(path: Path) -> int | None:
    """Return the process that holds the lock as a Java broker does; None if no process does, or Penstock holds it."""
    is_held, process = _get_holder(path)
    # An open-file-description lock belongs to no process; the system reports -1 for it.
    return process if is_held and process > 0 else None
