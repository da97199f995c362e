"""What travels beside the log: offsets, topics, groups, and how far delays and timers are.

A promoted copy goes on with them. They are, in the order in which they are sent and written:

    penstock/removed-topics        the topics that were removed, before any byte of the log that follows a removal
    penstock/store-id              the number in the journals of consumers; a copy that has one keeps its own
    penstock/auto-topics           which topics were created by messages; before the list of topics, as by its writer
    config/topics.json             topics
    config/subscriptionGroup.json  consumer groups
    config/consumerOffset.json     offsets of groups
    config/delayOffset.json        how far each delay level is delivered
    config/timercheck              how far timer messages are taken in and delivered
    consumequeue                   no file: where the master's queues without records go on

Not sent: `timerlog/` and `timerwheel`, which are rebuilt, and `penstock/groups` and `penstock/decisions`, which are of
the consumers of one machine. A message that was acknowledged after one that was not is delivered again.

Invariants:
    * A file never speaks of bytes of the log that the copy lacks: `SideFile.log_end` is read after the file, the log up
      to there is sent before it, and is durable on the copy before the file is written.
    * A file that was read before a removal of a topic is not written after it: a new topic of that name would have
      offsets of the old one. After each removal, all files are read and sent again, the first time a heartbeat later:
      the master removes the offsets after it has told of the removal.
    * A file that waits until its log was sent is never replaced by one that waits longer: a reading is sent whole, and
      then the last one that was offered meanwhile. Of each file, a connection holds what was sent last and what
      waits, beside what was read last.
    * The copy holds one file that comes in parts, and one that waits to be written: of at most 64 MiB each.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any

import attrs

from penstock import FollowedStore
from penstock.contracts import ReplicatedLog
from penstock.errors import CorruptionError, DiskFullError, PenstockError
from penstock.escape import get_logger, shown
from penstock.files import NO_ROOM, Files
from penstock.format.rocketmq_json import parse_rocketmq_json
from penstock_replicate import wire
from penstock_replicate.peer import Action, Send, SideFile
from penstock_replicate.wire import FILE_BYTES_MAX, WireViolation

logger = get_logger(__name__)
REMOVED_TOPICS, ENDS = "penstock/removed-topics", "consumequeue"
# So that a part is a control frame, and the log and heartbeats go on between two turns of a large file.
PART_BYTES, TURN_BYTES = 32 << 10, 1 << 20
_TIMERS = Struct(">3q")
_STORE_ID = re.compile(rb"[0-9a-f]{16}\n")


def _is_counts(data: bytes) -> bool:
    found = json.loads(data)
    return type(found) is dict and all(type(count) is int for count in found.values())


def _has(table: str) -> Callable[[bytes], bool]:
    def is_valid(data: bytes) -> bool:
        text = data.decode("utf-8-sig")
        try:
            found = json.loads(text)
        except ValueError:
            # Slower by far: a broker's.
            found = parse_rocketmq_json(text)
        return type(found) is dict and type(found.get(table)) is dict

    return is_valid


def _is_timercheck(data: bytes) -> bool:
    # Files of brokers before 5.0.1 have 32 bytes.
    return len(data) >= 32 and min(_TIMERS.unpack_from(data)) >= 0  # noqa: PLR2004 - as said


@attrs.frozen
class _Kind:
    # Returns False, or raises, for a content that the file never has.
    is_valid: Callable[[bytes], object]
    bytes_max: int = FILE_BYTES_MAX
    has_spare: bool = False


_KINDS: Mapping[str, _Kind] = {
    REMOVED_TOPICS: _Kind(lambda data: type(json.loads(data)) is dict, 64 << 20),
    "penstock/store-id": _Kind(_STORE_ID.fullmatch, 17),
    "penstock/auto-topics": _Kind(_is_counts),
    "config/topics.json": _Kind(_has("topicConfigTable"), has_spare=True),
    "config/subscriptionGroup.json": _Kind(_has("subscriptionGroupTable"), has_spare=True),
    "config/consumerOffset.json": _Kind(_has("offsetTable"), has_spare=True),
    "config/delayOffset.json": _Kind(_has("offsetTable"), has_spare=True),
    "config/timercheck": _Kind(_is_timercheck, 4096),
    ENDS: _Kind(lambda data: type(json.loads(data)) is list),
}
_READ = [name for name in _KINDS if name not in (REMOVED_TOPICS, ENDS)]
_KEPT = "penstock/store-id"


def trouble_of(name: str, data: bytes) -> str:
    """Return why a file that travels cannot have this content; "" if it can."""
    try:
        return "" if _KINDS[name].is_valid(data) else "it has other content"
    except (ValueError, RecursionError) as error:
        return str(error)


def _content(
    files: Files, root: Path, name: str, known: SideFile | None = None
) -> tuple[bytes | None, str]:
    """Return the content of a file, or None and why it cannot be used, "" if there is none."""
    try:
        data = files.read_whole(root / name, _KINDS[name].bytes_max)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, str(error)
    trouble = "" if known is not None and known.data == data else trouble_of(name, data)
    return (None, trouble) if trouble else (data, "")


# --- the master


@attrs.frozen
class Reading:
    """The files of one moment, and the `ReplicatedLog.removed_topics` before it."""

    files: Mapping[str, SideFile]
    removed_topics: Mapping[str, Any]


class MasterFiles:
    """Reads the files of a master. Not thread-safe."""

    def __init__(self, files: Files, log: ReplicatedLog) -> None:
        self._files, self._log = files, log
        self._last = Reading({}, log.removed_topics)
        # The ends of queues where the log began there; they change with its begin.
        self._ends, self._ends_at = b"", 0
        self._troubles: dict[str, str] = {}

    def read(self) -> Reading | None:
        """Return the files that are there; one that has not changed is the same object, except after a removal.

        Returns None at the first call after a removal.
        """
        removed, known = self._log.removed_topics, self._last.files
        if removed is not self._last.removed_topics:
            self._last, self._ends_at = Reading({}, removed), -1
            return None
        # The other way round: what was created in between has the entries that come before it.
        found = {name: self._usable(name, known.get(name)) for name in reversed(_READ)}
        found[ENDS] = self._read_ends()
        log_end = self._log.visible_offset
        made = {}
        for name in (*_READ, ENDS):
            data, before = found[name], known.get(name)
            if before is not None and before.data == data:
                made[name] = before
            elif data is not None:
                made[name] = SideFile(name, log_end, data)
        self._last = Reading(made, removed)
        return self._last

    def _read_ends(self) -> bytes | None:
        """Return the ends of queues; None if there are none, or too many to be sent."""
        begin, root = self._log.min_offset, self._log.root
        if begin != self._ends_at:
            self._ends_at = begin
            try:
                ends = self._log.lone_ends()
            except (PenstockError, OSError) as error:
                logger.warning("copies of %s are not told where its queues end: %s", root, error)
                return self._ends or None
            self._ends = json.dumps(ends).encode() if ends else b""
            if len(self._ends) > FILE_BYTES_MAX:
                logger.warning("copies of %s are not told where %d queues end", root, len(ends))
                self._ends = b""
        return self._ends or None

    def _usable(self, name: str, before: SideFile | None) -> bytes | None:
        """Return the content of a file; None if there is none that a copy can use, which is logged once."""
        data, trouble = _content(self._files, self._log.root, name, before)
        if trouble and trouble != self._troubles.get(name):
            path = self._log.root / name
            logger.warning("%s is not sent to copies, which keep theirs: %s", path, trouble)
        self._troubles[name] = trouble
        return data


class FileSender:
    """Sends the files of a master over one connection, one reading after the other. Not thread-safe."""

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log
        self._removed: Mapping[str, Any] | None = None
        # By name, what was sent last; and the reading that is to be sent next.
        self._sent: dict[str, SideFile] = {}
        self._waiting: Reading | None = None
        # Of the reading that is being sent: the files that are left, and the frames of the one that was begun.
        self._left: list[SideFile] | None = None
        self._frames: Iterator[Action] = iter(())
        # Readings: offered, the one whose level is told next or last, and of which the copy has written all.
        self._offered = self._level = self._written = 0

    @property
    def is_behind(self) -> bool:
        """Whether the copy has not written all of the last reading that was offered."""
        return self._written < self._offered

    def removals(self) -> Iterator[Action]:
        """Send the removed topics if they have changed; call it after looking at the log, and before sending of it."""
        removed = self._log.removed_topics
        if removed is not self._removed:
            self._removed, self._waiting, self._left, self._frames = removed, None, None, iter(())
            yield from _parts(SideFile(REMOVED_TOPICS, 0, json.dumps(dict(removed)).encode()))

    def offer(self, reading: Reading) -> None:
        """Send what of a reading is new, soon: when the one that is being sent is whole on its way."""
        if reading.removed_topics is self._removed:
            self._offered += 1
            self._waiting = reading

    def turn(self, position: int) -> Iterator[Action]:
        """Send some of what is left, if the log was sent up to `position`."""
        return islice(self._sending(position), TURN_BYTES // PART_BYTES)

    def _sending(self, position: int) -> Iterator[Action]:
        if self._left is None:
            if self._waiting is None:
                return
            files, self._waiting, self._level = self._waiting.files, None, self._offered
            self._left = [file for name, file in files.items() if file is not self._sent.get(name)]
        yield from self._frames
        while file := next((each for each in self._left if each.log_end <= position), None):
            self._left.remove(file)
            self._sent[file.name] = file
            self._frames = _parts(file)
            yield from self._frames
        if not self._left:
            self._left = None
            yield Send(wire.control("level", number=self._level))

    def written(self, number: int) -> None:
        """Note up to which reading the copy has written all."""
        if not self._written <= number <= self._level:
            raise WireViolation(f"reading {number} of files, and {self._level} was sent")
        self._written = number


def _parts(file: SideFile) -> Iterator[Action]:
    """Return the frames of a file. No generator: one would end with the turn that has begun it."""
    facts = {"name": file.name, "log_end": file.log_end, "size": len(file.data)}

    def part(start: int) -> Action:
        data = base64.b64encode(file.data[start : start + PART_BYTES]).decode()
        return Send(wire.control("file", **facts, start=start, data=data))

    return map(part, range(0, len(file.data), PART_BYTES))


# --- the copy


class Parts:
    """Puts a file together from the parts in which it comes; a first part drops what was not whole. Not thread-safe."""

    def __init__(self) -> None:
        self._head: tuple[object, ...] = ()
        self._data = bytearray()

    def take(self, fields: Mapping[str, Any]) -> SideFile | None:
        """Take the fields of a frame `file`; return the file if it is whole."""
        name, log_end, size = head = fields["name"], fields["log_end"], fields["size"]
        if fields["start"] == 0:
            self._head, self._data = head, bytearray()
        if name not in _KINDS or size > _KINDS[name].bytes_max:
            raise WireViolation(f"a file {shown(name)} of {size} bytes")
        part = fields["data"]
        end = len(self._data) + len(part)
        if head != self._head or fields["start"] != len(self._data) or not part or end > size:
            raise WireViolation(f"a part of {name} that does not continue it")
        self._data += part
        if end < size:
            return None
        data, self._head, self._data = bytes(self._data), (), bytearray()
        return SideFile(name, log_end, data)


def write(store: FollowedStore, file: SideFile) -> None:
    """Write a file of the master on the copy, durably, after the log that it speaks of.

    Raises:
        CorruptionError: no master has sent this; nothing was changed.
        ReplicationError: see `FollowedStore.remove_topics`.
        DiskFullError: the disk has no room; it has the content before.
        OSError: the disk failed; the file has the content before, or this one.
    """
    path, kind = store.root / file.name, _KINDS[file.name]
    trouble = trouble_of(file.name, file.data)
    if file.log_end > store.end_offset:
        trouble = f"of a log that ends at {file.log_end}, and {store.end_offset} was sent"
    if trouble:
        raise CorruptionError(path, 0, "a file of the master", f"{trouble}; it was not written")
    if file.name == REMOVED_TOPICS:
        store.remove_topics(json.loads(file.data))
        return
    try:
        if file.name == ENDS:
            store.keep_ends(json.loads(file.data))
            return
        # Of what cannot be used, no `.bak` is made.
        before, _ = _content(store.files, store.root, file.name)
        if before == file.data or (file.name == _KEPT and before is not None):
            return
        if store.flushed_offset < file.log_end:
            store.flush()
        store.files.make_folder_durably(path.parent)
        if before is not None and kind.has_spare:
            store.files.write_whole(path.with_name(path.name + ".bak"), before)
        store.files.write_whole(path, file.data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DiskFullError(path, len(file.data)) from error
