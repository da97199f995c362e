"""The store's lock: who may write, who holds it, and what a fork leaves of it.

Two locks are taken together, both without waiting:
    * an open-file-description lock on byte 0 of the lock file, the byte that the Java store locks. It and
      Java's refuse each other, it survives the closing of another descriptor of the file, and it refuses a
      second open in the same process;
    * a `flock` of the store's folder, which holds even where somebody removed the lock file.

A forked child shares its parent's locks, and would keep them when the parent is gone. So it closes its own
descriptors at once, which takes nothing from the parent; and whatever else must not go on in a child
registers with `leave_in_child`.
"""

import errno
import fcntl
import os
import struct
import weakref
from pathlib import Path
from typing import Protocol

# struct flock on 64-bit Linux: type, whence, start, length, pid (must be 0 for an OFD lock).
_FLOCK = struct.Struct("hhqqi4x")


class Leaving(Protocol):
    """What has something to give up in a forked child."""

    def leave(self) -> None:
        """Give up, in a child, what belongs to the parent; write nothing."""


_to_leave: "weakref.WeakSet[Leaving]" = weakref.WeakSet()


def leave_in_child(one: Leaving) -> None:
    """Have `one.leave()` called in every child that this process forks, as long as it lives."""
    _to_leave.add(one)


def _forked() -> None:
    for one in list(_to_leave):
        one.leave()


os.register_at_fork(after_in_child=_forked)


class Lock:
    """An exclusive lock on a store, held until `release`, or until nobody refers to it any more."""

    def __init__(self, descriptor: int, folder: int = -1) -> None:
        self._fds = [fd for fd in (descriptor, folder) if fd >= 0]
        self._fd = descriptor
        self._process = os.getpid()
        leave_in_child(self)

    def release(self) -> None:
        """Let go; calling it again does nothing."""
        if self._fds and os.getpid() == self._process:
            # Closing alone would leave it with a child that has the descriptor and did not close it.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK))
            for fd in self._fds[1:]:
                fcntl.flock(fd, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """Close the descriptors only: in a child the lock itself is the parent's."""
        while self._fds:
            os.close(self._fds.pop())

    def __del__(self) -> None:
        # An interrupt may come between taking it and keeping it.
        self.release()


def _request(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0)


def _open(path: Path, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def take(path: Path, mode: int) -> Lock | None:
    """Take the lock of the store whose lock file is `path`, without waiting; None if another holds it."""
    lock = Lock(
        _open(path, mode), os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    )
    try:
        fcntl.fcntl(lock._fds[0], fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
        fcntl.flock(lock._fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.release()
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return lock


def _holder(path: Path) -> tuple[bool, int]:
    """Return whether somebody holds the lock, and which process as far as the system knows it."""
    # Reading is enough to ask whether a reader's lock would be refused.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK))
    finally:
        os.close(descriptor)
    kind, _, _, _, process = _FLOCK.unpack(answer)
    return kind != fcntl.F_UNLCK, process


def is_taken(path: Path) -> bool:
    """Say whether anybody holds the lock; nothing is changed by it."""
    try:
        return _holder(path)[0]
    except OSError:
        return False


def owner(path: Path) -> int | None:
    """Return the process that holds the lock as Java does; None for nobody, or for one of Penstock's."""
    is_held, process = _holder(path)
    # An open-file-description lock belongs to no process, which the system says as -1.
    return process if is_held and process > 0 else None
