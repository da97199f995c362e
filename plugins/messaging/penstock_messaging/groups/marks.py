"""The progress of the writer in a group's journals: the file `marks` of the group. Only the writer changes it.

The file is one line with a CRC-32C in hexadecimal, and JSON after it; it is replaced as a whole. For each queue::

    generation, epoch  of the journal that was taken in
    taken              all events up to this number are taken in: their retries are in the log
    pending            the events up to this number are being taken in; equal to `taken` otherwise
    log_end            the retries of pending events are in the log from here on, if they are there
    old, new           the committed offset before and after; -1 if there was none

The order of writing is: marks with `pending` and `new`, retries, committed offsets, marks with `taken`. So after a kill
anywhere in between, the committed offset is `old` or `new`; any other one was committed by somebody else, and counts.
"""

import json

import attrs

from penstock.errors import CorruptionError
from penstock.escape import get_logger
from penstock.files import Files
from penstock.format.hashes import crc32c
from penstock_messaging.groups.entries import EPOCH_MAX, NUMBER_MAX
from penstock_messaging.groups.paths import GroupPaths

logger = get_logger(__name__)

_CRC_BYTES = 9
_INT64_MAX = (1 << 63) - 1
_LIMITS = {
    "generation": (0, _INT64_MAX),
    "epoch": (0, EPOCH_MAX),
    "taken": (0, NUMBER_MAX),
    "pending": (0, NUMBER_MAX),
    "log_end": (0, NUMBER_MAX),
    # Any number that consumerOffset.json may have.
    "old": (-1, _INT64_MAX),
    "new": (-1, _INT64_MAX),
}


@attrs.frozen
class Mark:
    """The progress of the writer in one queue's journal; see the module."""

    generation: int
    epoch: int = 0
    taken: int = 0
    pending: int = 0
    log_end: int = 0
    old: int = -1
    new: int = -1


Marks = dict[tuple[str, int], Mark]


def read_marks(files: Files, paths: GroupPaths) -> Marks:
    """Return the marks by (topic, queue); raises `CorruptionError` if the file holds something else."""
    try:
        raw = files.read_whole(paths.marks)
    except FileNotFoundError:
        return {}
    try:
        _check(raw)
        return {
            (topic, int(queue)): _mark(fields)
            for topic, queues in json.loads(raw[_CRC_BYTES:]).items()
            for queue, fields in queues.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CorruptionError(paths.marks, 0, "the marks of a group", str(error)) from error


def _check(raw: bytes) -> None:
    if raw[: _CRC_BYTES - 1] != b"%08x" % crc32c(raw[_CRC_BYTES:]):
        raise ValueError("its CRC is wrong")


def _mark(fields: dict[str, int]) -> Mark:
    for name, (low, high) in _LIMITS.items():
        value = fields[name]
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}")
    return Mark(**fields)


def write_marks(files: Files, paths: GroupPaths, marks: Marks) -> None:
    """Replace the marks of a group durably."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, queue), mark in sorted(marks.items()):
        table.setdefault(topic, {})[str(queue)] = attrs.asdict(mark)
    text = json.dumps(table, separators=(",", ":")).encode()
    files.write_whole(paths.marks, b"%08x\n" % crc32c(text) + text)


def usable_marks(files: Files, paths: GroupPaths) -> Marks:
    """Return the marks of a group; none, with a warning, if they cannot be read."""
    try:
        return read_marks(files, paths)
    except CorruptionError as error:
        logger.warning(
            "%s; the committed offsets and the journals of group %s are used without it, so refused messages may be "
            "retried twice", error, paths.group,
        )  # fmt: skip
        return {}
