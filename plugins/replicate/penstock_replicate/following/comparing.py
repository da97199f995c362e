"""Whether a follower's log continues its master's: by epochs first, then by the bytes themselves; and where two logs part.

An epoch begins whenever a follower is promoted. Two logs of one history are equal up to the end of the last epoch that both have, at
most. Equal epochs prove nothing about bytes that a master lost in a crash and wrote anew, so the last `WINDOW_BYTES` are compared by their
digests as well. Logs that differ are not compared as a whole: once they part, they never agree again where a record begins, because each
record contains its own offset and time; so the first window that differs is found by bisection, and the first byte in it as well. A window
in which no record begins is filler or a part of a large body, which may be equal in both: then the window before it is compared, too.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import attrs

from penstock.format.record import FIXED_SIZE, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC

WINDOW_BYTES = 1 << 20
_READ_BYTES = 4 << 20
_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))
# Where magic and stated log offset of a record are.
_MAGIC_AT, _OFFSET_AT = 4, slice(28, 36)

Span = tuple[int, int]
AskDigest = Callable[[int, int], Awaitable[bytes]]


class BeginsEpoch(Protocol):
    """An epoch: its number, and the log offset from which on records are of it."""

    @property
    def epoch(self) -> int:
        """The number; greater than that of any earlier epoch."""

    @property
    def start_offset(self) -> int:
        """Where it begins."""


class RawLog(Protocol):
    """The little that this module needs of a log."""

    @property
    def segment_bytes(self) -> int:
        """The size of a segment."""

    @property
    def min_offset(self) -> int:
        """The first byte that the log still has."""

    @property
    def end_offset(self) -> int:
        """The end of the log, whole records only."""

    def read(self, log_offset: int, size: int) -> bytes:
        """Return raw bytes, at most to the end of their segment."""

    def digest(self, start: int, stop: int) -> bytes:
        """Return the SHA-256 of raw bytes."""


@attrs.frozen
class CommonPart:
    """How far two logs can be equal, as their epochs say.

    Attributes:
        end: the log offset after the last byte that both may have in common.
        own_epoch: the epoch of this log from there on; None if the log has no later epoch.
        their_epoch: that of the other log.
    """

    end: int
    own_epoch: int | None
    their_epoch: int | None


def common_part(
    own: Sequence[BeginsEpoch], own_end: int, theirs: Sequence[BeginsEpoch], their_end: int
) -> CommonPart:
    """Return how far two logs of one history can be equal."""
    pairs = zip(own, theirs, strict=False)
    is_same = [(a.epoch, a.start_offset) == (b.epoch, b.start_offset) for a, b in pairs]
    count = is_same.index(False) if False in is_same else len(is_same)
    own_next = own[count] if count < len(own) else None
    their_next = theirs[count] if count < len(theirs) else None
    ends = (
        own_next.start_offset if own_next else own_end,
        their_next.start_offset if their_next else their_end,
    )
    return CommonPart(
        min(ends),
        own_next.epoch if own_next else None,
        their_next.epoch if their_next else None,
    )


def last_window(low: int, high: int) -> Span:
    """Return the last bytes before `high`, from `low` on at the earliest: those whose digests are compared first."""
    return max(low, high - WINDOW_BYTES), high


async def is_equal(own: RawLog, ask: AskDigest, low: int, high: int) -> bool:
    """Return whether two logs agree before `high`: in their last windows, back to one in which a record begins."""
    while high > low:
        start, stop = last_window(low, high)
        if own.digest(start, stop) != await ask(start, stop):
            return False
        if _has_record_head(own, start, stop):
            return True
        high = start
    return True


def _has_record_head(log: RawLog, start: int, stop: int) -> bool:
    """Return whether the beginning of a record, with its offset, time and CRC, is in a range."""
    data = b""
    while start + len(data) < stop:
        piece = log.read(start + len(data), stop - start - len(data))
        if not piece:
            break
        data += piece
    for magic in _MAGICS:
        at = data.rfind(magic)
        while at >= 0:
            head = data[max(at - _MAGIC_AT, 0) :][:FIXED_SIZE]
            stated = int.from_bytes(head[_OFFSET_AT], "big")
            if len(head) == FIXED_SIZE and stated == start + at - _MAGIC_AT:
                return True
            at = data.rfind(magic, 0, at)
    return False


async def parting_of(own: RawLog, ask: AskDigest, low: int, high: int) -> int:
    """Return the first log offset at which two logs differ, which are known not to be equal before `high`.

    Nothing before `low` is compared; if all from there on differs, `low` is returned.
    """
    answers: dict[Span, bytes] = {}

    async def ask_once(start: int, stop: int) -> bytes:
        if (start, stop) not in answers:
            answers[start, stop] = await ask(start, stop)
        return answers[start, stop]

    async def differs(start: int, stop: int) -> bool:
        return own.digest(start, stop) != await ask_once(start, stop)

    # Windows end at `high`, and the first one may be shorter.
    count = -(-(high - low) // WINDOW_BYTES)
    first, last = 0, count - 1
    while first < last:
        middle = (first + last) // 2
        stop = high - (count - 1 - middle) * WINDOW_BYTES
        if not await is_equal(own, ask_once, low, stop):
            last = middle
        else:
            first = middle + 1
    start, stop = last_window(low, high - (count - 1 - first) * WINDOW_BYTES)
    while stop - start > 1:
        middle = (start + stop) // 2
        if await differs(start, middle):
            stop = middle
        else:
            start = middle
    return start


def record_start(log: RawLog, log_offset: int) -> int:
    """Return where the record begins that the byte at `log_offset` belongs to."""
    segment = log_offset - log_offset % log.segment_bytes
    found = max(segment, log.min_offset)
    for start in _record_starts(log, found, log_offset + 1):
        found = start
    return found


def count_records(log: RawLog, start: int, stop: int, most: int) -> int:
    """Return how many records begin from `start`, where one begins, to `stop`; at most `most`."""
    count = 0
    for _ in _record_starts(log, start, stop):
        count += 1
        if count == most:
            break
    return count


def _record_starts(log: RawLog, start: int, stop: int) -> "list[int]":
    """Return where records and blank records begin, from `start` on, where one begins, to `stop`."""
    found = []
    window_start, window = start, b""
    while start < stop:
        position = start - window_start
        if position + SIZE_AND_MAGIC.size > len(window):
            window_start, window = start, log.read(start, _READ_BYTES)
            position = 0
            if len(window) < SIZE_AND_MAGIC.size:
                break
        size, _ = SIZE_AND_MAGIC.unpack_from(window, position)
        if size < SIZE_AND_MAGIC.size:
            break
        found.append(start)
        start += size
    return found
