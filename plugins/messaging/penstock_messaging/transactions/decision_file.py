"""The file `penstock/decisions`: which acknowledgements belong to which batch. Only the writing process changes it.

Layout (little-endian)::

    file     := entry*                             # each at a multiple of 64; zeros after the last one
    entry    := size u32  crc u32  text[size]      # CRC-32C of size and text; zeros up to the next multiple of 64
    text     := JSON, one of
                {"store": ID}                      # the first entry: the store's id
                {"id": N, "log": L, "acks": [ack, ...]}, ack := [group, topic, queue, generation, epoch, number, RANGES]
                {"dropped": N}                     # nothing of this decision was stored

A decision is on disk before the first byte of its batch is appended; the batch names it by the lower 30 bits of its id,
and begins at log offset L or after it. So the acknowledgements count only if the batch is in the log.

`generation`, `epoch` and `number` are those of the queue's journal (`groups.entries`) when it was decided. Once the
queue was taken by another owner, or the group was set elsewhere in it, the decision says nothing about it any more: the
next owner takes a queue only when its decided acknowledgements are in the journal, or puts them there.

Invariants:
    * A file gets its name when its first entry is on disk. Nothing is appended after a failed write or sync.
    * A decision is removed, with a new file in place of the old one, only if it is over: dropped, or all its
      acknowledgements are in journals that are on disk.

So what follows the last valid entry is a decision that no batch can name, torn by a crash. A valid entry after an
invalid one shows that the file is corrupt; then what the invalid one said is not known, and is not guessed.
"""

import errno
import json
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from penstock.contracts import SIDE_FOLDER
from penstock.errors import StorageError
from penstock.files import File, Files
from penstock.format.hashes import crc32c
from penstock.format.names import QUEUE_MAX
from penstock_messaging.groups.entries import EPOCH_MAX, NUMBER_MAX
from penstock_messaging.groups.fold import Range

_HEAD = struct.Struct("<II")
_ALIGN = 64
# A new file: room for some hundred decisions, as zeros, so that a sync writes bytes and no metadata.
_ROOM = 16 << 10
# From this size on, decisions that are over are removed.
FULL_BYTES = 64 << 10
# A decision of a million messages that are far apart; readers refuse a larger file.
_TEXT_MAX, _FILE_MAX = 16 << 20, 48 << 20
# How many bytes are checked for an entry after an invalid one: a hostile file must not keep an opening busy.
_SEARCH_MAX = 64 << 20
_BEGIN = b'{"'
_INT64_MAX = (1 << 63) - 1
_NAME_MAX = 255


def decision_path(root: Path) -> Path:
    """Return the path of the file."""
    return root / SIDE_FOLDER / "decisions"


@attrs.frozen
class QueueAcks:
    """Acknowledgements of one queue; see the module.

    Attributes:
        ranges: queue offsets (first, end), sorted and disjoint.
    """

    group: str
    topic: str
    queue: int
    generation: int
    epoch: int
    number: int
    ranges: tuple[Range, ...]


@attrs.frozen
class AckDecision:
    """That acknowledgements count if a batch is in the log."""

    id: int
    log_offset: int
    acks: tuple[QueueAcks, ...]


@attrs.frozen
class FoundDecisions:
    """The content of a file.

    Attributes:
        store: the store's id; 0 if there is no file.
        decisions: those that were not dropped.
        trouble: what is wrong with the file; "" if nothing.
    """

    store: int = 0
    decisions: tuple[AckDecision, ...] = ()
    trouble: str = ""


# --- reading


def read_decisions(files: Files, root: Path) -> FoundDecisions:
    """Return what the file says; raises `OSError` if it cannot be read."""
    try:
        raw = files.read_whole(decision_path(root), _FILE_MAX)
    except FileNotFoundError:
        return FoundDecisions()
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return FoundDecisions(trouble=f"it is too large ({error})")
    return parse_decisions(raw)


def parse_decisions(raw: bytes) -> FoundDecisions:
    """Return what the bytes of a file say; never raises."""
    found: dict[int, AckDecision] = {}
    store = position = 0
    trouble = ""
    while position < len(raw):
        size = _entry_size(raw, position)
        if not size:
            following = _next_entry(raw, position)
            if following is None:
                break
            trouble = trouble or f"the bytes {position} to {following} are no entry"
            position = following
            continue
        try:
            store = _apply(raw[position + _HEAD.size : position + size], found) or store
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            trouble = trouble or f"the entry at byte {position} is no decision ({error})"
        position += size + -size % _ALIGN
    if not (store or trouble):
        trouble = "it does not begin with a store's id"
    return FoundDecisions(store, tuple(found.values()), trouble)


def _entry_size(raw: bytes, position: int) -> int:
    """Return the bytes of the entry at a position; 0 if there is no valid one."""
    if position + _HEAD.size > len(raw):
        return 0
    size, crc = _HEAD.unpack_from(raw, position)
    start, end = position + _HEAD.size, position + _HEAD.size + size
    if not 0 < size <= _TEXT_MAX or end > len(raw):
        return 0
    return _HEAD.size + size if crc == _crc(raw[start:end]) else 0


def _next_entry(raw: bytes, position: int) -> int | None:
    """Return the position of the first valid entry after an invalid one; None if there is none."""
    room = _SEARCH_MAX
    for at in range(position + _ALIGN, len(raw), _ALIGN):
        if raw[at + _HEAD.size : at + _HEAD.size + len(_BEGIN)] != _BEGIN:
            continue
        room -= _HEAD.unpack_from(raw, at)[0]
        if room < 0:
            return None
        if _entry_size(raw, at):
            return at
    return None


def _crc(text: bytes) -> int:
    return crc32c(len(text).to_bytes(4, "little") + text)


def _apply(text: bytes, found: dict[int, AckDecision]) -> int:
    """Add what an entry says to `found`; return the store's id if it says that, else 0."""
    table: dict[str, Any] = json.loads(text)
    if "store" in table:
        return _whole(table["store"], 1, (1 << 64) - 1)
    if "dropped" in table:
        found.pop(_whole(table["dropped"], 1, NUMBER_MAX), None)
        return 0
    made = AckDecision(
        _whole(table["id"], 1, NUMBER_MAX), _whole(table["log"], 0, _INT64_MAX),
        tuple(map(_acks, table["acks"])),
    )  # fmt: skip
    found[made.id] = made
    return 0


def _acks(row: Sequence[Any]) -> QueueAcks:
    group, topic, queue, generation, epoch, number, ranges = row
    before, made = -1, []
    for first, end in ranges:
        made.append((_whole(first, before + 1, NUMBER_MAX), _whole(end, first + 1, NUMBER_MAX)))
        before = end
    return QueueAcks(
        _name(group), _name(topic), _whole(queue, 0, QUEUE_MAX), _whole(generation, 0, _INT64_MAX),
        _whole(epoch, 0, EPOCH_MAX), _whole(number, 0, NUMBER_MAX), tuple(made),
    )  # fmt: skip


def _whole(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not {low} to {high}")
    return value


def _name(value: object) -> str:
    if type(value) is not str or not 0 < len(value) <= _NAME_MAX:
        raise ValueError(f"{value!r} is no name")
    return value


# --- writing


def _entry(table: dict[str, Any]) -> bytes:
    text = json.dumps(table, separators=(",", ":")).encode()
    if len(text) > _TEXT_MAX:
        raise StorageError(
            f"a transaction acknowledges too many messages that are far apart ({len(text)} bytes to note them, at most "
            f"{_TEXT_MAX}); nothing was stored: use several transactions"
        )
    made = _HEAD.pack(len(text), _crc(text)) + text
    return made + bytes(-len(made) % _ALIGN)


def _decided(decision: AckDecision) -> bytes:
    rows = [attrs.astuple(each, recurse=False) for each in decision.acks]
    return _entry({"id": decision.id, "log": decision.log_offset, "acks": rows})


class DecisionFile:
    """The file, as the writing process appends to it. Safe from any thread; threads share syncs.

    Not opened before the first decision: a store without transactions has no file.
    """

    def __init__(self, files: Files, root: Path, store_id: int) -> None:
        self._files = files
        self._path = decision_path(root)
        self._store_id = store_id
        # Held while an entry is appended, and while a sync runs; a new file needs both, in this order.
        self._appends, self._syncs = threading.Lock(), threading.Lock()
        self._file: File | None = None
        self._position = self._room = 0
        self._appended = self._synced = 0

    @property
    def is_full(self) -> bool:
        """Whether decisions that are over should be removed."""
        return self._position >= FULL_BYTES

    @property
    def is_open(self) -> bool:
        """Whether decisions can be appended; if not, `replace` must be called first."""
        return self._file is not None

    def append(self, decision: AckDecision) -> None:
        """Append a decision; returns when it is on disk. An `OSError` closes the file, which must be replaced."""
        entry = _decided(decision)
        with self._appends:
            file = self._put(entry)
            self._appended = ticket = self._appended + 1
        with self._syncs:
            if ticket <= self._synced:
                return
            if self._file is not file:
                raise OSError(f"{self._path} was closed after a failure in another thread")
            last = self._appended
            try:
                file.sync()
            except OSError:
                self._abandon()
                raise
            self._synced = last

    def drop(self, number: int) -> None:
        """Note that nothing of a decision was stored. Not synced: after a crash, the log says it as well."""
        entry = _entry({"dropped": number})
        with self._appends:
            self._put(entry)

    def _put(self, entry: bytes) -> File:
        file = self._file
        if file is None:
            raise OSError(f"{self._path} is not open")
        try:
            end = self._position + len(entry)
            if end > self._room:
                # Later entries are in zeros as well.
                more = len(entry) + -len(entry) % _ROOM
                file.pwrite_pieces(bytes(more), self._room)
                self._room += more
            file.pwrite_pieces(entry, self._position)
        except OSError:
            self._abandon()
            raise
        self._position = end
        return file

    def _abandon(self) -> None:
        # Another thread may be in its sync: the object is closed when that has returned.
        self._file = None

    def replace(self, kept: Iterable[AckDecision]) -> None:
        """Write a new file with these decisions, durably, in place of the old one."""
        data = b"".join([_entry({"store": self._store_id}), *map(_decided, kept)])
        room = len(data) + _ROOM + -len(data) % _ROOM
        fresh = self._path.with_name(self._path.name + ".new")
        with self._appends, self._syncs:
            self._file = None
            self._files.make_folder_durably(self._path.parent)
            if self._files.exists(fresh):
                self._files.remove(fresh)
            file = self._files.create(fresh)
            try:
                file.pwrite_pieces(data.ljust(room, b"\0"), 0)
                file.sync_all()
                self._files.rename(fresh, self._path)
                file.path = self._path
                self._files.sync_folder(self._path.parent)
            except BaseException:
                file.close()
                raise
            self._file, self._position, self._room = file, len(data), room
            self._synced = self._appended

    def remove(self) -> None:
        """Remove the file durably: all its decisions are over."""
        with self._appends, self._syncs:
            self._file = None
            if self._files.exists(self._path):
                self._files.remove(self._path)
                self._files.sync_folder(self._path.parent)

    def set_aside(self) -> Path:
        """Rename a corrupt file, for people to look at; return its new path."""
        target = self._files.unused(self._path.with_name(self._path.name + ".corrupt"))
        with self._appends, self._syncs:
            self._file = None
            self._files.rename(self._path, target)
            self._files.sync_folder(self._path.parent)
        return target

    def close(self) -> None:
        """Close the file; its content stays."""
        with self._appends, self._syncs:
            if self._file is not None:
                self._file.close()
                self._file = None
