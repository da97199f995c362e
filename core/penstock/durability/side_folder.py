"""The side folder `penstock/` of a store: what Penstock records in addition to RocketMQ's own files.

    penstock/progress   how far the log is durable, and how far each dispatcher's files are (see `progress`)
    penstock/clean      written last at a clean close: the log's end and a digest of all files
    penstock/manifest   the dispatchers' summaries of their files, written before `clean` (see `manifest`)
    penstock/ranges     which ranges of the log Penstock wrote, and with which checksum (see `written_ranges`)
    penstock/removed-topics   which topics were removed (see `removed_topics`)
    penstock/holder     who has the store open for writing
    penstock/loads/     how far files were loaded (see `exchange.progress`)
    penstock/requests/  what other processes ask the writer to do (see `store.requests`)
    penstock/saved/     bytes that recovery cut off, if they held whole records

Losing the folder costs time at the next open, never data. Every writer, including RocketMQ's store, writes to the lock
file when it starts. If the lock file differs from the recorded one, another program has written to the store, or the
store is a copy.
"""

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path

import attrs

from penstock.durability.progress import Progress, State
from penstock.files import Files
from penstock.format.names import SIDE_FOLDER

# The list of topics is as long as the broker's.
_CLEAN_BYTES_MAX = 64 << 20


def lock_mtime_ns(files: Files, root: Path) -> int:
    """Return when the lock file was last written; every writer, including Java, writes it when it starts."""
    return files.mtime_ns(root / "lock")


def penstock_wrote_last(files: Files, root: Path, *noted_ns: int) -> bool:
    """Return whether no other program has opened the store for writing since one of these times was recorded.

    They are times of the lock file, as `lock_mtime_ns` returned them; 0 if none was recorded.
    """
    now = lock_mtime_ns(files, root)
    return now != 0 and now in noted_ns


def lock_ctime_ns(files: Files, root: Path) -> int:
    """Return when the lock file's inode was created or last changed; a copy of the file has a later time."""
    return files.ctime_ns(root / "lock")


def lock_inode(files: Files, root: Path) -> int:
    """Return the inode number of the lock file; 0 if there is none."""
    return files.inode(root / "lock")


def note_lock(state: State, files: Files, root: Path) -> None:
    """Record the lock file's times and inode in a state, so that a copy or another writer can be detected later."""
    state.lock_mtime_ns = lock_mtime_ns(files, root)
    state.lock_ctime_ns = lock_ctime_ns(files, root)
    state.lock_inode = lock_inode(files, root)


def visible_offset(files: Files, root: Path) -> int | None:
    """Return the offset up to which the writer has published records; None if the last writer was not Penstock."""
    state = Progress(files, root).read()
    return state.visible_offset if penstock_wrote_last(files, root, state.lock_mtime_ns) else None


def fingerprint(files: Files, folders: Iterable[Path]) -> str:
    """Return a digest of the names, sizes and times of all files below these folders."""
    digest = hashlib.sha256()
    waiting = [str(folder) for folder in folders if files.is_folder(folder)]
    while waiting:
        folder = waiting.pop()
        lines = []
        for entry in files.listing(folder):
            if entry.is_folder:
                waiting.append(f"{folder}/{entry.name}")
            else:
                lines.append(f"{entry.name}\0{entry.size}\0{entry.mtime_ns}\n")
        lines.append(f"{folder.rpartition('/')[2]}\n")
        digest.update("".join(lines).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def vouched_for(root: Path) -> list[Path]:
    """Return the folders whose files the clean-close file covers."""
    return [root / name for name in ("commitlog", "consumequeue", "consumequeue_ext", "index")]


@attrs.frozen(kw_only=True)
class CleanClose:
    """The content of the clean-close file: the log's end, its last store time, a digest of the files, and the topics listed then."""

    log_end: int
    last_time_ms: int
    digest: str
    topics: tuple[str, ...] = ()


class SideFolder:
    """The files `clean`, `holder` and `saved/` of the side folder. One writer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self.path = root / SIDE_FOLDER

    @property
    def saved(self) -> Path:
        """The folder for bytes that recovery cut off."""
        return self.path / "saved"

    def make(self) -> None:
        """Create the folder if it is missing; remove unfinished files that an interrupted run left."""
        self._files.make_folder_durably(self.path)
        for entry in self._files.entries(self.path):
            if entry.is_file and (entry.name.startswith("new-") or entry.name.endswith(".new")):
                self._files.remove(entry.path)

    def read_clean(self) -> CleanClose | None:
        """Return the content of the clean-close file, or None if it is missing or not valid."""
        path = self.path / "clean"
        if not self._files.exists(path):
            return None
        try:
            about = json.loads(self._files.read_whole(path, _CLEAN_BYTES_MAX))
            return CleanClose(
                log_end=int(about["log_end"]),
                last_time_ms=int(about["last_time_ms"]),
                digest=str(about["digest"]),
                topics=tuple(map(str, about["topics"])),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError):
            return None

    def write_clean(self, mark: CleanClose) -> None:
        """Write the clean-close file durably."""
        self._files.write_whole(self.path / "clean", json.dumps(attrs.asdict(mark)).encode())

    def remove_clean(self) -> None:
        """Remove the clean-close file durably, before the first change; also the manifest, which is not valid without it."""
        gone = [self.path / name for name in ("clean", "manifest")]
        gone = [path for path in gone if self._files.exists(path)]
        for path in gone:
            self._files.remove(path)
        if gone:
            self._files.sync_folder(self.path)

    def write_holder(self, process_id: int) -> None:
        """Record which process has the store open; an open-file-description lock does not show it."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"process {process_id}, since {since}"
        self._files.write_whole(self.path / "holder", text.encode())

    def read_holder(self) -> str:
        """Return a description of the process that has, or had, the store open."""
        own = self._files.lock_held_here(self.path.parent / "lock")
        if own is not None:
            place = f", which opened it at {own.opened_at}" if own.opened_at else ""
            return f"this process {self._files.process_id()}{place}"
        try:
            return self._files.read_whole(self.path / "holder", 4096).decode("utf-8", "replace")
        except OSError:
            # Missing, or too long to be written by Penstock; the text is only part of a message.
            return "another program, perhaps a RocketMQ broker"

    def save(self, name: str, data: bytes) -> Path:
        """Save bytes that recovery is about to cut off, as `name` with a number appended; return the path."""
        self._files.make_folder_durably(self.saved)
        path = self._files.unused(self.saved / name)
        self._files.write_whole(path, data)
        return path


def is_copy(files: Files, root: Path, state: State) -> bool:
    """Return whether the store is a copy: its lock file is not the one that the last writer recorded.

    A copy that kept the modification time has another change time (ctime), which no program can set. A copy that did
    not keep the modification time looks like a store that another program has opened, but has another inode number.
    """
    if state.lock_mtime_ns == 0:
        return False
    if penstock_wrote_last(files, root, state.lock_mtime_ns):
        return state.lock_ctime_ns != lock_ctime_ns(files, root)
    return state.lock_inode != lock_inode(files, root)


def is_unfinished_copy(files: Files, root: Path, state: State) -> bool:
    """Return whether the store is a copy that was made while the original was open."""
    if not is_copy(files, root, state):
        return False
    return files.exists(root / "abort") or SideFolder(files, root).read_clean() is None
