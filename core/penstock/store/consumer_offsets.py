"""How far each consumer group has read: RocketMQ's `config/consumerOffset.json`.

The file has a table `offsetTable`, which maps `topic@group` to queue number to next offset. Brokers up to 5.4
write the inner keys without quotes, which is not valid JSON. Both forms are read; the quoted form is written,
which every broker reads. The previous content is kept in `consumerOffset.json.bak`, which is read if the file
itself cannot be.

Invariants:
    * Every entry that is used would also be accepted as a commit. Any other entry (a queue `0x`, an
      offset 1.5, a topic with a path outside its folder) is set aside: it stays unchanged in the file, is named
      once in the log and in `set_aside`, and every other entry is used.
    * New content is parsed before it replaces the file, and must yield the table that it was written from.
    * A file that could be parsed is never replaced by one that could not: neither the file nor its `.bak`.

When a store is opened, an offset may be greater than the end of its queue. Either the log's tail was lost (power cut
under `async`), or the table is newer than the log (an older copy, a restored log). The group would miss
the next messages, so the offset is set back:

    * For a queue in the queue index, even one without entries, or of a removed topic: the offset is set back to the
      queue's end when the store is opened for writing.
    * For a queue that is not in the queue index: the offset is not changed at opening. The topic may be deleted,
      never used here, or stored in a format that is not understood; the group misses nothing while nothing is put.
      The first put to that queue sets the offset back to the queue's first offset.
    * An offset below the queue's first message is legal: reads return OFFSET_TOO_SMALL.
"""

import contextlib
import json
import operator
import threading
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import attrs

from penstock.contracts import QueueReader
from penstock.errors import CommitError, CorruptionError, MessageError, PenstockError, StorageError
from penstock.escape import get_logger, shown
from penstock.files import Files
from penstock.format.names import check_queue, check_topic
from penstock.format.rocketmq_json import parse_rocketmq_json

logger = get_logger(__name__)

OFFSET_MAX = (1 << 63) - 1
# The limit of brokers.
GROUP_BYTES_MAX = 255
FILE_BYTES_MAX = 64 << 20
_SHOWN_CHARACTERS = 80
# The maximum number of entries named in one warning.
_NAMED_MAX = 5
_NOT_UNDERSTOOD = (ValueError, TypeError, AttributeError, OverflowError, OSError)


@attrs.frozen
class Table:
    """The content of the file.

    Attributes:
        whole: all of it, as it was parsed.
        used: `topic@group` to queue to offset, without the entries that are set aside.
        aside: one sentence for each entry that is set aside.
    """

    whole: dict[str, object] = attrs.Factory(dict)
    used: dict[str, dict[int, int]] = attrs.Factory(dict)
    aside: list[str] = attrs.Factory(list)

    @classmethod
    def parse(cls, raw: bytes) -> "Table":
        """Return the table in the bytes of a file; raises `ValueError` if there is none."""
        table = cls(parse_rocketmq_json(raw.decode("utf-8-sig")))
        for name, queues in table._queue_tables().items():
            table._add_entry(name, queues)
        return table

    def _queue_tables(self) -> dict[str, object]:
        found = self.whole.setdefault("offsetTable", {})
        if not isinstance(found, dict):
            raise ValueError("offsetTable is not a JSON object")  # noqa: TRY004 - as above
        return found

    def _add_entry(self, name: str, queues: object) -> None:
        """Add the valid offsets of an entry to `used`, and a sentence for each other one to `aside`."""
        topic, _, group = name.rpartition("@")
        if group == "broadcast" and "@" in topic:
            # Topic, group and this word: how far brokers of 5.x know that broadcast consumers are.
            return
        try:
            check_group(group)
            check_topic(topic)
        except MessageError as error:
            self.aside.append(f"entry {_short(name)}: {error}")
            return
        if not isinstance(queues, dict):
            self.aside.append(f"entry {_short(name)}: {_short(queues)} is not a table of queues")
            return
        used = self.used[name] = {}
        for queue, offset in queues.items():
            if not _is_queue(queue):
                text = f"entry {_short(name)}: {_short(queue)} is not a queue number"
            elif type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                text = (
                    f"entry {_short(name)}, queue {queue}: {_short(offset)} is not a queue offset"
                )
            else:
                used[int(queue)] = offset
                continue
            self.aside.append(text)

    def with_offsets(self, offsets: Mapping[tuple[str, int], int]) -> "Table":
        """Return a table with some offsets changed; all other entries are kept, including those set aside."""
        entries = dict(self._queue_tables())
        used = {name: dict(queues) for name, queues in self.used.items()}
        for (name, queue), offset in offsets.items():
            before = entries.get(name)
            entries[name] = {**(before if isinstance(before, dict) else {}), str(queue): offset}
            used.setdefault(name, {})[queue] = offset
        return Table({**self.whole, "offsetTable": entries}, used, self.aside)

    def without(self, names: Sequence[str]) -> "Table":
        """Return a table without the offsets of some names; their entries that are set aside stay."""
        entries, used = dict(self._queue_tables()), dict(self.used)
        for name in names:
            known, queues = used.pop(name, {}), entries.pop(name, None)
            if not isinstance(queues, dict):
                continue
            aside = {
                queue: offset
                for queue, offset in queues.items()
                if not (_is_queue(queue) and int(queue) in known)
            }
            if aside:
                entries[name], used[name] = aside, {}
        return Table({**self.whole, "offsetTable": entries}, used, self.aside)

    def written(self) -> tuple[bytes, "Table"]:
        """Return the file's content, and the table parsed from it; raises `ValueError` if its offsets differ."""
        try:
            text = json.dumps(self.whole, indent="\t", ensure_ascii=False)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        # A lone surrogate cannot be encoded as UTF-8; Python's backslash escape for it is also JSON's escape.
        raw = text.encode("utf-8", "backslashreplace")
        if len(raw) > FILE_BYTES_MAX:
            raise ValueError(f"it would be {len(raw)} bytes long, the limit is {FILE_BYTES_MAX}")
        again = Table.parse(raw)
        if again.used != self.used:
            raise ValueError("reading it back would yield other offsets")
        return raw, again


def _is_queue(text: str) -> bool:
    """Return whether a key is a canonical queue number: digits only, without a leading zero."""
    if not (text.isascii() and text.isdigit() and len(text) <= _SHOWN_CHARACTERS):
        return False
    try:
        return str(check_queue(int(text))) == text
    except MessageError:
        return False


def _short(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "(and so on)"


def check_group(group: object) -> str:
    """Return `group`; raises `MessageError` if it is not a valid name of a consumer group."""
    if not isinstance(group, str) or not group or "@" in group or not group.isprintable():
        raise MessageError(
            f"group {shown(group)} is refused: it must be non-empty printable text without '@'"
        )
    size = len(group.encode())
    if size > GROUP_BYTES_MAX:
        raise MessageError(
            f"group {_short(group)} is refused: it has {size} UTF-8 bytes, the limit is {GROUP_BYTES_MAX}"
        )
    return group


def check_offset(group: str, topic: str, queue: int, offset: object, end: int) -> int:
    """Return `offset` as an int; raises `CommitError` unless it is an integer, of any type, from 0 to `end`."""
    number = None
    if not isinstance(offset, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(offset)  # type: ignore[arg-type] # raises if it is not an integer
    if number is None:
        raise CommitError(group, topic, queue, offset, "it must be a whole number")
    if number < 0:
        raise CommitError(group, topic, queue, offset, "it is negative")
    if number > end:
        raise CommitError(group, topic, queue, offset, f"the queue ends at {end}")
    return int(number)


def check_known(index: QueueReader, group: str, topic: str, queue: int, offset: object) -> int:
    """Return the end of a queue; raises `CommitError` if the store has no such queue."""
    end = index.max_offset(topic, queue)
    if end == 0 and (topic, queue) not in index.queues():
        raise CommitError(
            group, topic, queue, offset, "the store has no such queue: put a message to it first"
        )
    return end


class ConsumerOffsets:
    """The committed offsets of one store. Safe from any thread; one process writes."""

    def __init__(self, files: Files, root: Path, *, read_only: bool) -> None:
        self._files = files
        self._path = root / "config" / "consumerOffset.json"
        self._spare = self._path.with_name(self._path.name + ".bak")
        self._read_only = read_only
        self._lock = threading.Lock()
        self._table: Table | None = None
        # Why the file itself could not be used; None if it could, or does not exist.
        self._problem: CorruptionError | None = None
        self._warned: list[str] = []
        # For each queue that is not in the queue index: the entries with an offset above 0.
        self._early: dict[tuple[str, int], list[str]] = {}

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """Return the next offset of a group in a queue; None if it never committed one."""
        name = f"{check_topic(topic)}@{check_group(group)}"
        number = check_queue(queue)
        with self._lock:
            return self._loaded().used.get(name, {}).get(number)

    def groups(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return a mapping of (group, topic) to queue to next offset."""
        with self._lock:
            found = {}
            for name, queues in self._loaded().used.items():
                topic, _, group = name.rpartition("@")
                found[group, topic] = dict(queues)
            return found

    def set_aside(self) -> list[str]:
        """Return one sentence for each entry that is set aside, and one if the file cannot be read."""
        with self._lock:
            try:
                table = self._loaded()
            except CorruptionError as error:
                return [str(error)]
            return self._remarks(table)

    def put(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Commit an offset; it is on disk when this returns. The caller checks that the queue has that offset.

        Replaces an entry of the same group and queue that was set aside.
        """
        name = f"{check_topic(topic)}@{check_group(group)}"
        number = check_queue(queue)
        offset = check_offset(group, topic, number, offset, OFFSET_MAX)
        with self._lock:
            self._save({(name, number): offset}, f"offset {offset} of group {group}")

    def remove_group(self, group: str) -> None:
        """Remove the offsets of a group in all topics; those set aside stay."""
        with self._lock:
            names = [name for name in self._loaded().used if name.rpartition("@")[2] == group]
            if names:
                self._save({}, f"the removal of the offsets of group {group}", without=names)

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of all groups in a topic that was removed; those set aside stay."""
        with self._lock:
            names = [name for name in self._loaded().used if name.rpartition("@")[0] == topic]
            if names:
                self._save({}, f"the removal of the offsets in topic {topic}", without=names)

    def move(
        self, moves: Mapping[tuple[str, str, int], tuple[int | None, int]]
    ) -> set[tuple[str, str, int]]:
        """Commit offsets in one durable write, each only if its group's offset is still the expected one.

        Args:
            moves: (group, topic, queue) to (expected offset, or None if the group never committed one; new offset). The
                caller checks that the queues have these offsets.

        Returns:
            Those that were not moved, since their offset was another one.
        """
        with self._lock:
            used = self._loaded().used
            kept, changed = set(), {}
            for (group, topic, queue), (expected, new) in moves.items():
                name = f"{check_topic(topic)}@{check_group(group)}"
                number = check_queue(queue)
                if used.get(name, {}).get(number) != expected:
                    kept.add((group, topic, queue))
                elif new != expected:
                    changed[name, number] = check_offset(group, topic, number, new, OFFSET_MAX)
            if changed:
                self._save(changed, f"{len(changed)} offsets")
        return kept

    # --- offsets beyond the end of their queue

    def set_back(self, index: QueueReader, removed: Container[str] = ()) -> list[str]:
        """Set back each offset that is greater than the end of its queue, durably; see the module docstring.

        `removed` are the topics that were removed. Returns one sentence for each offset. A file that cannot be read is
        not changed.
        """
        with self._lock:
            try:
                table = self._loaded()
            except CorruptionError as error:
                logger.warning(
                    "committed offsets are not compared with the ends of the queues: %s", error
                )
                return []
            known = set(index.queues()) if table.used else set()
            self._early = {}
            ends: dict[tuple[str, int], int] = {}
            for name, queues in table.used.items():
                topic = name.rpartition("@")[0]
                for queue, offset in queues.items():
                    if (topic, queue) not in known and topic not in removed:
                        self._early.setdefault((topic, queue), []).append(name)
                    elif not index.reaches(topic, queue, offset):
                        ends[name, queue] = index.max_offset(topic, queue)
            return self._set_back(ends)

    def queue_begins(self, topic: str, queue: int, first: int) -> None:
        """Set back the offsets of a queue that is about to get its first message, at offset `first`.

        Called before that message is stored, which is refused if the offsets cannot be written: groups would miss it.
        """
        with self._lock:
            names = self._early.get((topic, queue))
            if not names:
                return
            try:
                used = self._loaded().used
            except CorruptionError as error:
                logger.warning(
                    "queue %s/%d begins at offset %d; greater committed offsets are not set back: %s",
                    topic, queue, first, error,
                )  # fmt: skip
                used = {}
            ends = {(n, queue): first for n in names if used.get(n, {}).get(queue, 0) > first}
            for sentence in self._set_back(ends):
                logger.warning("%s", sentence)
            del self._early[topic, queue]

    def _set_back(self, ends: dict[tuple[str, int], int]) -> list[str]:
        """Write the new offsets, and return a sentence for each."""
        if not ends:
            return []
        used = self._loaded().used
        sentences = []
        for (name, queue), end in ends.items():
            topic, _, group = name.rpartition("@")
            sentences.append(
                f"offset {used[name][queue]} of group {group} in queue {topic}/{queue} was greater than "
                f"the queue's end; it was set back to {end}, so that the group misses no new message"
            )
        self._save(ends, f"{len(ends)} offsets that were greater than the end of their queue")
        return sentences

    # --- the file

    def _loaded(self) -> Table:
        if self._table is None or self._read_only:
            self._table = self._load()
            self._warn(self._remarks(self._table))
        return self._table

    def _load(self) -> Table:
        """Return the table from the file, or from its `.bak`; raises `CorruptionError` if neither can be read."""
        problem: CorruptionError | None = None
        for path in (self._path, self._spare):
            if not self._files.exists(path):
                continue
            try:
                table = Table.parse(self._files.read_state(path, FILE_BYTES_MAX))
            except _NOT_UNDERSTOOD as error:
                problem = problem or CorruptionError(
                    path, 0, "a table of consumer offsets", str(error), "restore it from a copy"
                )
                continue
            self._problem = problem
            return table
        if problem is not None:
            raise problem
        self._problem = None
        return Table()

    def _remarks(self, table: Table) -> list[str]:
        """Return one sentence for each problem with the file."""
        path = self._spare if self._problem else self._path
        remarks = [f"{path.name}, {text}" for text in table.aside]
        if self._problem is not None:
            remarks.insert(
                0, f"{self._problem}; the offsets in use were read from {self._spare.name}"
            )
        return remarks

    def _warn(self, remarks: list[str]) -> None:
        """Log the remarks if they differ from the last ones."""
        if remarks == self._warned:
            return
        self._warned = remarks
        if remarks:
            shown = "; ".join(remarks[:_NAMED_MAX])
            more = f"; and {len(remarks) - _NAMED_MAX} more" if len(remarks) > _NAMED_MAX else ""
            logger.warning(
                "committed offsets in %s are set aside: %s%s. All other offsets are used. An entry that is set aside "
                "stays in the file until you correct it or the same group commits again", self._path.parent,
                shown, more,
            )  # fmt: skip

    def _save(
        self, offsets: Mapping[tuple[str, int], int], what: str, without: Sequence[str] = ()
    ) -> None:
        """Write the table with new offsets, and without some names; raises `StorageError` if that fails."""
        try:
            raw, table = self._loaded().without(without).with_offsets(offsets).written()
            self._replace(raw)
        except BaseException as error:
            # An offset that is not on disk is not committed, so the file is read again.
            self._table = None
            if not isinstance(error, OSError | ValueError) or isinstance(error, PenstockError):
                raise
            raise StorageError(
                f"{what} could not be written to {self._path} ({error}); the offsets committed before are "
                f"unchanged; commit again"
            ) from error
        self._table = table

    def _replace(self, raw: bytes) -> None:
        """Replace the content of the file; the previous content becomes the `.bak` file if it can be read."""
        self._files.make_folder_durably(self._path.parent)
        if self._problem is not None:
            # The spare is the only readable copy, so it is not replaced. The unreadable file is kept for a manual
            # repair.
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(
                    self._path, self._path.with_name(self._path.name + ".unreadable")
                )
        elif self._files.exists(self._path):
            self._files.write_whole(self._spare, self._files.read_whole(self._path, FILE_BYTES_MAX))
        self._files.write_whole(self._path, raw)
        self._problem = None
