"""The living members of a group: each is a file, locked for as long as its process and its consumer live.

A member's file is written and locked under another name first, so that a file with a member's name is always whole and
locked. A file whose lock is free belongs to a dead member, and is removed by whoever notices. If a living member's file
is removed nevertheless, it joins again.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.errors import StorageError
from penstock.escape import get_logger
from penstock.files import Files, Lock
from penstock_messaging.groups.paths import GroupPaths

logger = get_logger(__name__)

_ID = re.compile(r"[0-9]{1,10}-[0-9a-f]{16}")
_JOINING = ".joining"
_CONTENT_BYTES_MAX = 1 << 20
_TRIES_MAX = 10


@attrs.frozen
class Member:
    """A living member.

    Attributes:
        id: its name, unique in the group.
        pid: its process.
        since_ms: when it joined, in Unix milliseconds.
        topics: the text of its selection of topics.
        options: further facts, for people.
    """

    id: str
    pid: int
    since_ms: int
    topics: str
    options: Mapping[str, Any] = attrs.Factory(dict)


def _random() -> str:
    return secrets.token_hex(8)


class Membership:
    """This consumer's own membership. Not thread-safe."""

    def __init__(
        self, files: Files, paths: GroupPaths, topics: str, now_ms: int,
        options: Mapping[str, Any], random: Callable[[], str] = _random,
    ) -> None:  # fmt: skip
        """Prepare a membership; `join` makes it visible."""
        self._files = files
        self._folder = paths.members
        self._group, self._deleting = paths.group, paths.deleting
        self._random = random
        self._about = Member("", files.process_id(), now_ms, topics, dict(options))
        self._lock: Lock | None = None
        self.id = ""

    @property
    def is_alive(self) -> bool:
        """Whether the others see this member."""
        return self._lock is not None and self._lock.has_name(self._folder / self.id)

    def join(self) -> None:
        """Become a member, with a new id; does nothing for one that is alive.

        Raises `StorageError` while the group is deleted. Either this member or the deleting program sees the other.
        """
        if self.is_alive:
            return
        self.leave()
        self._check_deletion()
        self._join()
        try:
            self._check_deletion()
        except BaseException:
            self.leave()
            raise

    def _check_deletion(self) -> None:
        if self._files.is_locked(self._deleting):
            raise StorageError(
                f"group {self._group} is being deleted, so nothing was changed and no consumer can join it now: try "
                "again"
            )

    def _join(self) -> None:
        self._files.make_folder_durably(self._folder)
        for _ in range(_TRIES_MAX):
            self.id = f"{self._about.pid}-{self._random()}"
            path = self._folder / self.id
            joining = path.with_name(path.name + _JOINING)
            lock = self._files.lock_one(joining)
            if lock is None:
                continue
            try:
                self._write(joining)
                self._files.rename(joining, path)
            except FileNotFoundError:
                # Another member took the file for one of a dead member before it was locked.
                lock.release()
                continue
            except BaseException:
                lock.release()
                raise
            self._lock = lock
            return
        raise StorageError(
            f"{self._folder}: a member's file was removed again and again; nothing was changed. Check which program "
            "removes files there"
        )

    def _write(self, path: Path) -> None:
        file = self._files.open(path, writable=True)
        try:
            file.pwrite(json.dumps(attrs.asdict(attrs.evolve(self._about, id=self.id))).encode(), 0)
        finally:
            file.close()

    def leave(self) -> None:
        """Stop being a member; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        path = self._folder / self.id
        try:
            if lock.has_name(path):
                self._files.remove(path)
        except OSError as error:
            # The lock's end is enough: the others remove the file.
            logger.warning("%s could not be removed: %s", path, error)
        finally:
            lock.release()


def living_members(files: Files, paths: GroupPaths) -> list[Member]:
    """Return the living members, sorted by id."""
    return [m for m in (_read(files, path) for path in _named(files, paths)) if m is not None]


def _named(files: Files, paths: GroupPaths) -> list[Path]:
    if not files.is_folder(paths.members):
        return []
    names = [item.name for item in files.listing(str(paths.members)) if item.is_file]
    return [paths.members / name for name in names if _ID.fullmatch(name)]


def _read(files: Files, path: Path) -> Member | None:
    """Return the living member with this file; None if it is dead, or the file holds something else."""
    if not files.is_locked(path):
        return None
    try:
        found = json.loads(files.read_whole(path, _CONTENT_BYTES_MAX))
        options = found["options"]
        return Member(
            path.name, int(found["pid"]), int(found["since_ms"]), str(found["topics"]),
            options if isinstance(options, dict) else {},
        )  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        # OverflowError: JSON has numbers that are infinite.
        return None


def remove_dead_members(files: Files, paths: GroupPaths) -> None:
    """Remove the files of members that are dead; a failure leaves them to the next call."""
    if not files.is_folder(paths.members):
        return
    for item in files.listing(str(paths.members)):
        path = paths.members / item.name
        if not item.is_file or not _ID.fullmatch(item.name.removesuffix(_JOINING)):
            continue
        try:
            if files.is_locked(path):
                continue
            lock = files.lock_one(path)
            if lock is None:
                continue
            try:
                # Also if this call has just created the file anew.
                if lock.has_name(path):
                    files.remove(path)
            finally:
                lock.release()
        except OSError as error:
            logger.warning("%s, of a member that is dead, could not be removed: %s", path, error)
