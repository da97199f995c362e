"""The side folder `penstock/` of a store: what Penstock records in addition to RocketMQ's own files.

    penstock/progress   how far the log is durable, and how far each dispatcher's files are (see `progress`)
    penstock/clean      written last at a clean close: the log's end and a digest of all files
    penstock/manifest   the dispatchers' summaries of their files, written before `clean`
    penstock/ranges     which ranges of the log Penstock wrote, and with which checksum (see `written_ranges`)
    penstock/removed-topics   which topics were removed
    penstock/lost-end   the log has lost its end: which messages extensions have handled is to be found in it again
    penstock/store-id   a random number: what extensions note of messages counts only where the store still has it
    penstock/holder     who has the store open for writing
    penstock/loads/     how far files were loaded (see `exchange.progress`)
    penstock/requests/  what other processes ask the writer to do (see `store.requests`)
    penstock/saved/     bytes that recovery cut off, if they held whole records

Losing the folder costs time at the next open, never data. Every writer, including RocketMQ's store, writes to the lock
file when it starts. If the lock file differs from the recorded one, another program has written to the store, or the
store is a copy.

`manifest`: a store of 20,000 queues has as many files, and opening each of them costs more than the rest of an opening.
So a dispatcher may summarise its files (`Dispatcher.closing_summary`), and gets the summary back when it loads. Layout
(big-endian)::

    file := magic 8s  digest 32s  count u32  part{count}  crc32c u32     # the last 4 bytes, over all before them
    part := name 24s  size u64  byte{size}

`digest` is the digest in the clean-close file: over the names, sizes and times of all files that the clean-close file
covers. The manifest is written before the clean-close file and removed after it. It is valid only beside a clean-close
file with the same digest, and only if the files still have that digest: then nobody has written them since. Otherwise,
or if any byte of it is wrong, it is ignored, and dispatchers read their files. It holds nothing that the
files do not hold.

`removed-topics`: JSON, one object: topic to `{"before": 4711, "count": 1}`. The topic's records before log offset
`before` have no queue entry, whatever the log still holds; records from there on are of a topic of the same name that
was created later. `count` is how often the topic was removed: queue offsets begin at 0 each time.

Invariants:
    * The file is written durably before the first queue file of the topic is deleted, so no recovery brings a removed
      topic back.
    * `before` is never after the log's end: if the log has lost its tail, it is lowered before new records are
      appended. In a store that follows another one it may be: a removal comes before the records that it hides.
    * The size, modulo 1024, is one more after each write: spaces follow the JSON. So a process that reads finds every
      change by the size, also where two writes have the same time and the same inode number.
    * An entry stays when its records are gone, since the count tells old queue offsets from new ones.
    * A file that cannot be read is renamed when the store is next opened for writing, and named: removed topics come
      back, and no message is lost.
"""

import contextlib
import hashlib
import json
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.durability.progress import Progress, State
from penstock.errors import MessageError, StorageError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.files.file import NO_ROOM
from penstock.format.hashes import crc32c
from penstock.format.names import LOST_END, SIDE_FOLDER, check_topic
from penstock.format.record import crc32

logger = get_logger(__name__)

_MAGIC = b"PSTKMAN1"
_HEAD = struct.Struct(">8s32sI")
_PART = struct.Struct(">24sQ")
_CRC = struct.Struct(">I")
# A queue takes about 50 bytes, plus some topic names; no store has enough queues to reach this limit.
MANIFEST_BYTES_MAX = 256 << 20


def manifest_path(root: Path) -> Path:
    """Return the path of a store's manifest."""
    return root / SIDE_FOLDER / "manifest"


def encode_manifest(digest: str, parts: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a manifest: the digest in the clean-close file, and the summary of each dispatcher."""
    chunks = [_HEAD.pack(_MAGIC, bytes.fromhex(digest), len(parts))]
    for name, summary in sorted(parts.items()):
        chunks += [_PART.pack(name.encode()[:24], len(summary)), summary]
    body = b"".join(chunks)
    return body + _CRC.pack(crc32c(body))


def decode_manifest(data: bytes) -> tuple[str, dict[str, bytes]] | None:
    """Return the digest and the summaries of a manifest; None if any byte of it is wrong."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    body = memoryview(data)[: -_CRC.size]
    magic, digest, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(bytes(body)):
        return None
    parts, at = dict[str, bytes](), _HEAD.size
    while at < len(body) and len(parts) < count:
        if at + _PART.size > len(body):
            return None
        name, size = _PART.unpack_from(body, at)
        start = at + _PART.size
        at = start + size
        if at > len(body):
            return None
        parts[name.rstrip(b"\0").decode("utf-8", "replace")] = bytes(body[start:at])
    return (digest.hex(), parts) if at == len(body) and len(parts) == count else None


def read_manifest(files: Files, root: Path) -> tuple[str, dict[str, bytes]] | None:
    """Return the digest and the summaries of a store's manifest; None if it is missing or not valid."""
    try:
        return decode_manifest(files.read_whole(manifest_path(root), MANIFEST_BYTES_MAX))
    except OSError:
        return None


def summaries_for(files: Files, root: Path, digest: str) -> dict[str, bytes]:
    """Return each dispatcher's summary of the files with this digest; empty if there is no such manifest."""
    found = read_manifest(files, root)
    return found[1] if found is not None and found[0] == digest else {}


def write_manifest(files: Files, root: Path, digest: str, parts: Mapping[str, bytes]) -> None:
    """Write a manifest durably; write none if there are no summaries or the disk has no room."""
    data = encode_manifest(digest, parts)
    if not parts or len(data) > MANIFEST_BYTES_MAX:
        return
    try:
        files.write_whole(manifest_path(root), data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning(
            "%s: the disk has no room for the manifest; no data is lost, the next opening only takes longer",
            root,
        )


REMOVED_BYTES_MAX = 64 << 20
_OFFSET_MAX = 1 << 62
_SIZES = 1024
NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError)


def read_about(files: Files, path: Path, size_max: int) -> Any:
    """Return `about` of a JSON file `{"about": about, "crc32": CRC-32 of it as json.dumps writes it}`.

    Raises one of `NOT_UNDERSTOOD` if the file is missing, longer than `size_max` bytes, or not such a file.
    """
    whole = json.loads(files.read_state(path, size_max))
    about = whole["about"]
    if whole["crc32"] != crc32(json.dumps(about).encode()):
        raise ValueError("its CRC does not match")
    return about


def write_about(files: Files, path: Path, about: object) -> None:
    """Replace such a file, durably."""
    whole = {"about": about, "crc32": crc32(json.dumps(about).encode())}
    files.write_whole(path, json.dumps(whole).encode())


@attrs.frozen
class Removal:
    """A topic was removed `count` times, the last time with all its records before log offset `before`."""

    before: int
    count: int


@attrs.frozen
class RemovedTopics:
    """The removed topics of one store."""

    topics: Mapping[str, Removal] = attrs.Factory(dict)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "RemovedTopics":
        """Return what the JSON values of a file state; raises one of `NOT_UNDERSTOOD` if that cannot be."""
        found = {}
        for topic, about in table.items():
            before, count = about["before"], about["count"]
            if type(before) is not int or type(count) is not int:
                raise ValueError(f"the entry of topic {topic!r} has no whole numbers")
            if not (0 <= before <= _OFFSET_MAX and 0 < count <= _OFFSET_MAX):
                raise ValueError(f"a number of topic {topic!r} is out of range")
            try:
                found[check_topic(topic)] = Removal(before, count)
            except MessageError as error:
                raise ValueError(str(error)) from error
        return cls(found)

    @property
    def table(self) -> dict[str, Any]:
        """The JSON values of the file."""
        return {topic: attrs.asdict(removal) for topic, removal in self.topics.items()}

    @property
    def before(self) -> dict[str, int]:
        """Topic to the log offset before which its records are removed."""
        return {topic: removal.before for topic, removal in self.topics.items()}

    def before_of(self, topic: str) -> int:
        """Return the log offset before which a topic's records are removed; 0 if it never was."""
        found = self.topics.get(topic)
        return found.before if found else 0

    def count(self, topic: str) -> int:
        """Return how often a topic was removed."""
        found = self.topics.get(topic)
        return found.count if found else 0

    def with_removed(self, topic: str, log_offset: int) -> "RemovedTopics":
        """Return the same with a topic's records before a log offset removed."""
        removal = Removal(log_offset, self.count(topic) + 1)
        return RemovedTopics({**self.topics, topic: removal})

    def lowered(self, log_end: int) -> "RemovedTopics":
        """Return the same for a log that ends at `log_end`: records written from there on are not removed."""
        return RemovedTopics(
            {
                topic: attrs.evolve(removal, before=min(removal.before, log_end))
                for topic, removal in self.topics.items()
            }
        )


class RemovedTopicsFile:
    """The file of one store. Safe from any thread; one process writes."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._path = root / SIDE_FOLDER / "removed-topics"
        self._known: tuple[tuple[int, int, int], RemovedTopics] | None = None
        self._held: RemovedTopics | None = None

    def read(self) -> RemovedTopics:
        """Return the content, read again only if the file has changed; empty if there is none, or it cannot be read."""
        if self._held is not None:
            return self._held
        now = self._files.version(self._path)
        known = self._known
        if known is not None and known[0] == now:
            return known[1]
        found = RemovedTopics()
        if any(now):
            try:
                found = self._parse()
            except NOT_UNDERSTOOD as error:
                logger.warning(
                    "%s cannot be read (%s): topics that were removed have their messages again; no message is lost",
                    self._path, error,
                )  # fmt: skip
        self._known = now, found
        return found

    def _parse(self) -> RemovedTopics:
        return RemovedTopics.of(json.loads(self._files.read_state(self._path, REMOVED_BYTES_MAX)))

    def write(self, removed: RemovedTopics) -> None:
        """Write the content durably; a content that is unchanged is not written.

        Raises `StorageError` if it is larger than what is read; then nothing was changed.
        """
        if removed == self.read():
            return
        data = json.dumps(removed.table, indent=1).encode()
        if len(data) > REMOVED_BYTES_MAX - _SIZES:
            raise StorageError(
                f"{self._path} has {len(removed.topics)} removed topics and no room for another; nothing was removed. "
                "Give new topics the names of old ones"
            )
        size = self._files.version(self._path)[2] + 1
        self._files.write_whole(self._path, data + b" " * ((size - len(data)) % _SIZES))
        self._known = None

    @contextlib.contextmanager
    def replaced(self, removed: RemovedTopics) -> Iterator[None]:
        """Write the content durably; this process reads it once the block, which removes the queues, has ended.

        Nobody must take the messages of an old queue for those of a topic that is made again.
        """
        self._held = self.read()
        try:
            self.write(removed)
            yield
        finally:
            self._held = None

    def repair(self, log_end: int) -> list[str]:
        """Lower what is after the log's end, durably, and set an unreadable file aside; return a sentence a repair.

        Called while the store is opened for writing, before anything is appended.
        """
        if not self._files.exists(self._path):
            return []
        try:
            found = self._parse()
        except NOT_UNDERSTOOD as error:
            aside = self._files.unused(self._path.with_name("removed-topics.unreadable"))
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(self._path, aside)
            self._known = None
            text = f"{self._path} could not be read ({error}) and was renamed to {aside.name}: "
            return [f"{text}topics that were removed have their messages again"]
        lowered = found.lowered(log_end)
        if lowered == found:
            return []
        self.write(lowered)
        return [
            f"the log ends before the removal of a topic; {self._path.name} was lowered to {log_end}"
        ]


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


def visible_offset(files: Files, root: Path) -> Callable[[], int | None]:
    """Return a function that returns up to which offset the writer has published records.

    It returns None if the last writer was not Penstock.
    """
    side_folder = SideFolder(files, root)
    # In this order: a close that is noted later is of another writer.
    noted = files.version(side_folder.path / "clean")
    clean = side_folder.read_clean()

    def published() -> int | None:
        state = Progress(files, root).read()
        if not penstock_wrote_last(files, root, state.lock_mtime_ns):
            return None
        if clean and any(noted) and files.version(side_folder.path / "clean") == noted:
            # The newer slot of the progress file may have been lost since the close.
            return max(state.visible_offset, clean.log_end)
        return state.visible_offset

    return published


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
    """The clean-close file's content: the log's end, its last store time, a digest of the files, the topics listed."""

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
        """Remove the clean-close file durably, before the first change, and the manifest, which needs it."""
        gone = [self.path / name for name in ("clean", "manifest")]
        gone = [path for path in gone if self._files.exists(path)]
        for path in gone:
            self._files.remove(path)
        if gone:
            self._files.sync_folder(self.path)

    def note_lost_end(self) -> None:
        """Note, before the log loses its end, that extensions may count what it loses; they remove the note."""
        self._files.make_folder_durably(self.path)
        self._files.write_whole(self.path / Path(LOST_END).name, b"")

    def renew_id(self) -> None:
        """Give the store another id, before a copy is cut: extensions name it in what they note of messages.

        The next messages have the queue offsets of those that are cut, and would count as acknowledged.
        """
        path = self.path / "store-id"
        if self._files.exists(path):
            self._files.write_whole(path, b"%016x\n" % secrets.randbits(64))

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
