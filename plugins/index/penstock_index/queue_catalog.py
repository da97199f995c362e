"""Which queues a store has: by the names of the folders under `consumequeue`, and by the summary of a clean close.

A name that is not a topic, or not a queue number as the store writes it, belongs to no queue of the store. Examples are
control characters, bytes that are not UTF-8, a number above the limit or with leading zeros, and a file in place of a
folder. It is reported once and left unchanged, and it stops nothing: all other queues are read and written. A link or
a device is different for a writer, which would follow it out of the store: it is refused.

The summary has the bounds of all queues; it is the consume queues' part of the manifest. Layout (big-endian)::

    summary := magic 8s  entries_per_file u32  topics u32  queues u32  files u32
               topic{topics}  row{queues}  base i64{files}
    topic   := size u16  name byte{size}
    row     := topic u32  queue u32  files u32  min_offset i64  max_offset i64  last i64

Rows are in order of topic and queue, topics in order of their names as bytes; `topic` counts from 0. `base` is the
first entry of a file; the bases of a queue follow each other in the order of the rows, ascending. `last` is the log
offset in the last entry that has one, -1 if none has. A row with a `max_offset` of -1 does not give the bounds of its
queue, only its files.

`penstock.durability.side_folder` describes when the manifest is trusted at all. The recorded bounds of a queue are
compared with the queue's files when the queue is first used.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.contracts import Finding
from penstock.errors import QueueError, StrayFileError, TopicError
from penstock.escape import get_logger
from penstock.files import Files, Listed
from penstock.format.arrays import Int64s, RowType, Structs, np
from penstock.format.names import QUEUE_MAX, check_queue, check_topic

logger = get_logger(__name__)

Key = tuple[str, int]

_ADVICE = (
    "inspect it and move it out of the store by hand; no command reads, repairs or removes it, and no queue of "
    "the store needs it"
)


class QueueNames:
    """The names under one `consumequeue` folder. Safe from any thread.

    Attributes:
        root: the folder.
    """

    def __init__(self, files: Files, root: Path, *, read_only: bool) -> None:
        self._files = files
        self.root = root
        self._read_only = read_only
        self._reported: set[Path] = set()

    def folders(self) -> Iterator[tuple[str, int]]:
        """Yield topic and queue of every folder that may hold a queue's files; raise `StrayFileError` for a link.

        Logs each entry that belongs to no queue, the first time that it is found.
        """
        for found in self._scan_names():
            # A finding is a tuple, too.
            if not isinstance(found, Finding):
                yield found
            elif found.path not in self._reported:
                self._reported.add(found.path)
                logger.warning(
                    "%s, %s: %s",
                    found.path,
                    found.text,
                    "it was not changed, and all other queues are used",
                )

    def check_free(self, topic: str, number: int) -> None:
        """Raise `StrayFileError` if something other than a folder is at the place of a queue's folder."""
        for path in (self.root / topic, self.root / topic / str(number)) if self._reported else ():
            if path in self._reported:
                raise StrayFileError(path, "a queue of the store needs this name for its folder")

    def findings(self) -> Iterator[Finding]:
        """Return findings for entries that belong to no queue, for `verify`."""
        return (found for found in self._scan_names() if isinstance(found, Finding))

    def _scan_names(self) -> Iterator[tuple[str, int] | Finding]:
        root = str(self.root)
        for topic in self._listing(root) if self._files.is_folder(self.root) else ():
            problem = self._refuse_link("", topic) or topic_problem(topic.name)
            if problem or not topic.is_folder:
                text = problem or "a file is in a folder that holds only the folders of topics"
                yield _finding(self.root / topic.name, text)
                continue
            for number in self._listing(f"{root}/{topic.name}"):
                problem = self._refuse_link(topic.name, number) or queue_problem(number.name)
                if problem or not number.is_folder:
                    problem = problem or "a file is at the place of a queue's folder"
                    yield _finding(self.root / topic.name / number.name, problem)
                else:
                    yield topic.name, int(number.name)

    def _listing(self, folder: str) -> list[Listed]:
        try:
            return self._files.listing(folder)
        except (FileNotFoundError, NotADirectoryError):
            # Another process has just removed it.
            return []

    def of_wrong_length(self, topic: str, queue: int, size: int) -> Iterator[Listed]:
        """Yield the files of a queue that are not `size` bytes long, also if one looks again.

        A broker makes a file in two steps.
        """
        folder = f"{self.root}/{topic}/{queue}"
        found = {e.name for e in self._listing(folder) if e.is_file and e.size != size}
        for entry in self._listing(folder) if found else ():
            if entry.name in found and entry.size != size:
                yield entry

    def _refuse_link(self, topic: str, entry: Listed) -> str:
        """Raise for a link in place of a folder: files written below it would be outside the store."""
        if entry.is_folder or entry.is_file:
            return ""
        if not self._read_only:
            raise StrayFileError(self.root / topic / entry.name, "it is a link, or not a folder")
        return "it is a link, or not a folder, and is not followed"


def _finding(path: Path, text: str) -> Finding:
    return Finding("stray", path, -1, -1, text, _ADVICE)


def topic_problem(name: str) -> str:
    """Return why a folder's name is not a topic; "" if it is one."""
    try:
        check_topic(name)
    except TopicError as error:
        return f"its name is not a topic: {error.reason}"
    return ""


def is_number(name: str) -> bool:
    """Return whether a name consists of the digits 0 to 9; other Unicode digits do not count."""
    return name.isascii() and name.isdigit()


def queue_problem(name: str) -> str:
    """Return why a folder's name is not a queue number as the store writes it; "" if it is one."""
    try:
        is_right = is_number(name) and str(check_queue(int(name))) == name
    except QueueError:
        is_right = False
    return "" if is_right else "its name is not a queue number, 0 to 65535 without leading zeros"


# --- the summary of a clean close

_MAGIC = b"PSTKCQS1"
_HEAD = struct.Struct(">8sIIII")
_TOPIC = struct.Struct(">H")
_ROW = RowType([("topic", ">u4"), ("queue", ">u4"), ("files", ">u4"), ("min", ">i8"), ("max", ">i8"), ("last", ">i8")]
)  # fmt: skip
_BASE, _BASE_SIZE = ">i8", 8
# The bounds of the queue are not known.
UNKNOWN = -1
# No log and no queue has offsets up to this one: sums of these stay within 64 bits.
_OFFSET_MAX = 1 << 62


class ClosedQueue(NamedTuple):
    """The known facts about a queue that was not opened yet.

    Attributes:
        bases: the first entry of each of its files, ascending.
        min_offset: the first entry that counted.
        max_offset: the ordinal after the last entry; `UNKNOWN` if it was not read.
        last: log offset in the last entry that has one; -1 if none has.
    """

    bases: tuple[int, ...]
    min_offset: int = 0
    max_offset: int = UNKNOWN
    last: int = -1


def encode_summary(entries_per_file: int, queues: Iterable[tuple[Key, ClosedQueue]]) -> bytes:
    """Return the summary of these queues, each of them once."""
    named = sorted((topic.encode(), number, known) for (topic, number), known in queues)
    topics = list(dict.fromkeys(name for name, _, _ in named))
    places = {name: place for place, name in enumerate(topics)}
    rows = np.array(
        [(places[name], number, len(k.bases), *k[1:]) for name, number, k in named], _ROW.dtype
    )
    bases = np.array([base for _, _, known in named for base in known.bases], _BASE)
    head = _HEAD.pack(_MAGIC, entries_per_file, len(topics), len(rows), len(bases))
    names = b"".join(_TOPIC.pack(len(name)) + name for name in topics)
    return head + names + rows.tobytes() + bases.tobytes()


def decode_summary(
    data: bytes, entries_per_file: int, log_end: int
) -> dict[Key, ClosedQueue] | None:
    """Return the queues of a summary, in order; None if it is not valid for such files and such a log."""
    if len(data) < _HEAD.size:
        return None
    magic, per_file, topic_count, row_count, file_count = _HEAD.unpack_from(data)
    if magic != _MAGIC or per_file != entries_per_file:
        return None
    topics, at = _topics(data, topic_count)
    rest = row_count * _ROW.itemsize + file_count * _BASE_SIZE
    if topics is None or len(data) - at != rest:
        return None
    rows = np.frombuffer(data, _ROW.dtype, row_count, at)
    bases = np.frombuffer(data, _BASE, file_count, at + rows.nbytes).astype(np.int64)
    if not _rows_are_valid(rows, bases, len(topics), per_file, log_end):
        return None
    counts = rows["files"].astype(np.int64)
    stops = np.cumsum(counts)
    listed = bases.tolist()
    keys = [(topics[place], number) for place, number in rows[["topic", "queue"]].tolist()]
    places = zip(keys, (stops - counts).tolist(), stops.tolist(), strict=True)
    ends = rows[["min", "max", "last"]].tolist()
    return {
        key: ClosedQueue(tuple(listed[start:stop]), *said)
        for (key, start, stop), said in zip(places, ends, strict=True)
    }


def _topics(data: bytes, count: int) -> tuple[list[str] | None, int]:
    """Return the names of the topics and where they end; None unless they ascend and could be folder names."""
    names, at = list[bytes](), _HEAD.size
    while len(names) < count:
        if at + _TOPIC.size > len(data):
            return None, at
        (size,) = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size + size
        names.append(data[at - size : at])
        if len(names) > 1 and names[-2] >= names[-1]:
            return None, at
    try:
        topics = [name.decode() for name in names]
    except UnicodeDecodeError:
        return None, at
    return (None if any(map(topic_problem, topics)) else topics), at


def _rows_are_valid(rows: Structs, bases: Int64s, topics: int, per_file: int, log_end: int) -> bool:
    """Return whether rows and files can be those of one store."""
    counts = rows["files"].astype(np.int64)
    places = rows["topic"].astype(np.int64) * (QUEUE_MAX + 1) + rows["queue"]
    if int(counts.sum()) != len(bases) or (np.diff(places) <= 0).any():
        return False
    if len(rows) and (int(rows["topic"].max()) >= topics or int(rows["queue"].max()) > QUEUE_MAX):
        return False
    if len(bases) and not (int(bases.min()) >= 0 and int(bases.max()) < _OFFSET_MAX - per_file):
        return False
    stops = np.cumsum(counts)
    ascends = np.diff(bases, prepend=-1) > 0
    ascends[(stops - counts)[counts > 0]] = True
    if not ascends.all() or (bases % per_file != 0).any():
        return False
    return _bounds_are_valid(rows, bases, counts, per_file, log_end)


def _bounds_are_valid(
    rows: Structs, bases: Int64s, counts: Int64s, per_file: int, log_end: int
) -> bool:
    """Return whether the bounds of each queue are within its files, and its records within the log."""
    low, high, last = (rows[name].astype(np.int64) for name in ("min", "max", "last"))
    stops = np.cumsum(counts)
    has_files = counts > 0
    begin, end = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    begin[has_files] = bases[(stops - counts)[has_files]]
    end[has_files] = bases[stops[has_files] - 1] + per_file
    lies_within = (begin <= low) & (low <= high) & (high <= end)
    is_in_log = (last >= -1) & (last < log_end) & ((last >= 0) | (low == high))
    return bool(((high == UNKNOWN) | (lies_within & is_in_log)).all())


def differences(
    said: dict[Key, ClosedQueue], found: Iterator[tuple[Key, ClosedQueue]]
) -> Iterator[str]:
    """Yield a sentence for each difference between a summary and the queues that were found."""
    left = dict(said)
    for key, known in found:
        name = f"queue {key[0]}/{key[1]}"
        noted = left.pop(key, None)
        if noted is None:
            yield f"{name} is not in the summary"
        elif noted.bases != known.bases:
            yield f"{name} has other files than the summary states"
        elif noted.max_offset not in (UNKNOWN, known.max_offset):
            yield f"{name} ends at {known.max_offset}, not at {noted.max_offset}"
        elif noted.max_offset != UNKNOWN and noted[1:] != known[1:]:
            yield f"{name} begins at {known.min_offset} with other records than the summary states"
    for topic, number in left:
        yield f"queue {topic}/{number} does not exist"
