"""The right to a queue: a lock on the queue's file while its owner lives. The lock counts, never a computation."""

import json
from pathlib import Path

from penstock.files import Files, Lock

_CONTENT_BYTES_MAX = 4096
# How often the lock is tried again where its file is removed at the same moment.
_TRIES_MAX = 10


class QueueLock:
    """A held lock, with the holder's name in the file. Not thread-safe."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self._path = path
        self._lock = lock

    @property
    def is_held(self) -> bool:
        """Whether the lock is held, and its file is still the one that others lock."""
        return self._lock.has_name(self._path)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._lock.release()


def take_lock(files: Files, path: Path, member: str) -> QueueLock | None:
    """Take a lock without waiting, and write the holder's name into the file; return None if it is held already."""
    for _ in range(_TRIES_MAX):
        lock = files.lock_one(path)
        if lock is None:
            return None
        if lock.has_name(path):
            try:
                _write_holder(files, path, member)
            except BaseException:
                lock.release()
                raise
            return QueueLock(path, lock)
        # The file was removed between its opening and its locking.
        lock.release()
    return None


def _write_holder(files: Files, path: Path, member: str) -> None:
    """Write who holds the lock, for messages only: it is neither synced nor checked."""
    text = json.dumps({"member": member, "pid": files.process_id()}).encode()
    file = files.open(path, writable=True)
    try:
        file.resize(0)
        file.pwrite(text, 0)
    finally:
        file.close()


def holder_of(files: Files, path: Path) -> str | None:
    """Return a phrase that names who holds a lock; None if it is free."""
    if not files.exists(path) or not files.is_locked(path):
        return None
    try:
        found = json.loads(files.read_whole(path, _CONTENT_BYTES_MAX))
        return f"process {int(found['pid'])}, member {str(found['member'])[:200]}"
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "an unknown process"
