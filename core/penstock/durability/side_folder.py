"""The side folder `penstock/` of a store: what Penstock knows of it beyond RocketMQ's own files.

    penstock/progress   how far the log is durable, and how far each dispatcher's files are (see `progress`)
    penstock/clean      written last at a clean close: the log's end and a digest of all files
    penstock/manifest   what dispatchers noted of their files before that (see `manifest`)
    penstock/ranges     which ranges of the log Penstock wrote, and with which checksum (see `written_ranges`)
    penstock/holder     who has the store open for writing
    penstock/saved/     what recovery cut off, if it held whole records

Losing the folder costs time at the next open, never data. Every writer, RocketMQ's store included, writes to the lock
file when it starts; a lock file that is another than the one noted says that another program has written, or that the
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


def lock_mtime_ns(files: Files, root: Path) -> int:
    """Return when the lock file was last written: every writer, Java too, writes it when it starts."""
    return files.mtime_ns(root / "lock")


def penstock_wrote_last(files: Files, root: Path, *noted_ns: int) -> bool:
    """Return whether no other program has opened the store for writing since one of these times was noted.

    They are times of the lock file, as `lock_mtime_ns` returned them; 0 where none was noted.
    """
    now = lock_mtime_ns(files, root)
    return now != 0 and now in noted_ns


def lock_ctime_ns(files: Files, root: Path) -> int:
    """Return when the lock file was made or last changed in any way: a copy of it was made later."""
    return files.ctime_ns(root / "lock")


def lock_inode(files: Files, root: Path) -> int:
    """Return the number of the lock file on its disk; 0 where there is none."""
    return files.inode(root / "lock")


def note_lock(state: State, files: Files, root: Path) -> None:
    """Note in a state what the lock file is now, so that a copy or another writer is known later."""
    state.lock_mtime_ns = lock_mtime_ns(files, root)
    state.lock_ctime_ns = lock_ctime_ns(files, root)
    state.lock_inode = lock_inode(files, root)


def visible_offset(files: Files, root: Path) -> int | None:
    """Return what the writer has published for readers; None if the last writer was not Penstock."""
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
    """Return the folders whose files a clean mark vouches for."""
    return [root / name for name in ("commitlog", "consumequeue", "consumequeue_ext", "index")]


@attrs.frozen(kw_only=True)
class CleanClose:
    """What the clean mark says: where the log ended, its last store time, and what the files were."""

    log_end: int
    last_time_ms: int
    digest: str


class SideFolder:
    """The marks in the side folder: clean, holder, saved pieces. One writer."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self.path = root / SIDE_FOLDER

    @property
    def saved(self) -> Path:
        """The folder for what recovery cut off."""
        return self.path / "saved"

    def make(self) -> None:
        """Make the folder if it is not there; remove what an interrupted run left half made."""
        self._files.make_folder_durably(self.path)
        for entry in self._files.entries(self.path):
            if entry.is_file and (entry.name.startswith("new-") or entry.name.endswith(".new")):
                self._files.remove(entry.path)

    def read_clean(self) -> CleanClose | None:
        """Return the clean mark, or None where there is none that can be understood."""
        path = self.path / "clean"
        if not self._files.exists(path):
            return None
        try:
            about = json.loads(self._files.read_whole(path, 1 << 20))
            return CleanClose(
                log_end=int(about["log_end"]),
                last_time_ms=int(about["last_time_ms"]),
                digest=str(about["digest"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError):
            return None

    def write_clean(self, mark: CleanClose) -> None:
        """Write the clean mark, durably."""
        self._files.write_whole(self.path / "clean", json.dumps(attrs.asdict(mark)).encode())

    def remove_clean(self) -> None:
        """Take the clean mark away, durably, before the first change; and the manifest, which says nothing without it."""
        gone = [self.path / name for name in ("clean", "manifest")]
        gone = [path for path in gone if self._files.exists(path)]
        for path in gone:
            self._files.remove(path)
        if gone:
            self._files.sync_folder(self.path)

    def write_holder(self, process_id: int) -> None:
        """Say who has the store open; an open-file-description lock does not."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"process {process_id}, since {since}"
        self._files.write_whole(self.path / "holder", text.encode())

    def read_holder(self) -> str:
        """Return who has, or had, the store open."""
        try:
            return self._files.read_whole(self.path / "holder", 4096).decode("utf-8", "replace")
        except OSError:
            # Missing, or far too long to be ours: it only names who is to be asked.
            return "another program, perhaps a RocketMQ broker"

    def save(self, name: str, data: bytes) -> Path:
        """Keep bytes that recovery is about to cut off, under a name with a number after it; returns where."""
        self._files.make_folder_durably(self.saved)
        path = self._files.unused(self.saved / name)
        self._files.write_whole(path, data)
        return path


def is_copy(files: Files, root: Path, state: State) -> bool:
    """Say whether the lock file is another one than the last writer noted: the store is a copy then.

    A copy that kept the time of the last write has another time of the last change, which no program can set.
    One that did not keep it looks like a store that another program has opened, but for the file's number.
    """
    if state.lock_mtime_ns == 0:
        return False
    if penstock_wrote_last(files, root, state.lock_mtime_ns):
        return state.lock_ctime_ns not in (0, lock_ctime_ns(files, root))
    return state.lock_inode not in (0, lock_inode(files, root))


def is_unfinished_copy(files: Files, root: Path, state: State) -> bool:
    """Say whether the store is a copy, and was not closed when it was made."""
    if not is_copy(files, root, state):
        return False
    return files.exists(root / "abort") or SideFolder(files, root).read_clean() is None
