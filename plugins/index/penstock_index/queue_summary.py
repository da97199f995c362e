"""The bounds of all queues, recorded at a clean close: the consume queues' part of the manifest.

Layout (big-endian)::

    summary := magic 8s  entries_per_file u32  topics u32  queues u32  files u32  topic{topics}  row{queues}  base i64{files}
    topic   := size u16  name byte{size}
    row     := topic u32  queue u32  files u32  min_offset i64  max_offset i64  last i64

Rows are in order of topic and queue, topics in order of their names as bytes; `topic` counts from 0. `base` is the first
entry of a file; the bases of a queue follow each other in the order of the rows, ascending. `last` is the log offset in
the last entry that has one, -1 if none has. A row with a `max_offset` of -1 does not give the bounds of its queue,
only its files.

`penstock.durability.side_folder` describes when the manifest is trusted at all. The recorded bounds of a queue are compared
with the queue's files when the queue is first used.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.format.arrays import Int64s, RowType, Structs, np
from penstock.format.names import QUEUE_MAX
from penstock_index.queue_claims import Key
from penstock_index.queue_names import topic_problem

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
