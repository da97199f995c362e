"""Finds records by key and by time: the candidates of an index are compared with the log.

If the log is mapped, the kernel checks records in place. If it does not accept a record, or other processes may
truncate the files, a copy is read and checked as for every other reader (see `record_reader`).
"""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from penstock._kernel import record_time, record_with_key
from penstock.contracts import QueueReader
from penstock.errors import OffsetError
from penstock.format.columns import Buffer
from penstock.format.record import FIXED_SIZE
from penstock.log.record_reader import QueuePosition
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.message import StoredMessage
from penstock.read.filters import has_key

# Replaces bytes that are not UTF-8; a key with it can be compared only as text.
_REPLACED = "\ufffd"
# The number of entries read at once in a search by time.
_CHUNK = 256
# Larger records are read as messages if the log is not mapped.
_SHORT_BYTES = 2048


class KeySought(NamedTuple):
    """The topic, the key, and the first and last store time to search for, both 64-bit numbers."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int

    def is_met(self, message: StoredMessage) -> bool:
        """Return whether a message matches; compares its texts."""
        is_timed = self.begin_ms <= message.store_time_ms <= self.end_ms
        return is_timed and message.topic == self.topic and has_key(message, self.key)


def find_keyed(
    log: SegmentedLog,
    read: Callable[[int], StoredMessage | None],
    candidates: Iterable[int],
    sought: KeySought,
    limit: int,
) -> list[StoredMessage]:
    """Return the first `limit` candidates that match, in the order of the log.

    Args:
        log: the log.
        read: returns the message at a log offset, None if there is no valid one.
        candidates: log offsets, newest first, possibly with duplicates.
        sought: the criteria.
        limit: the maximum number of messages.
    """
    texts = _utf8_of(sought) if log.is_mapped else None
    found: dict[int, StoredMessage] = {}
    for log_offset in candidates:
        if log_offset in found:
            continue
        message: StoredMessage | Literal[False] | None = False
        if texts is not None:
            message = _in_place(log, log_offset, sought, texts)
        if message is False:
            message = read(log_offset)
            message = message if message is not None and sought.is_met(message) else None
        if message is not None:
            found[log_offset] = message
            if len(found) >= limit:
                break
    return [found[offset] for offset in sorted(found)]


def _utf8_of(sought: KeySought) -> tuple[bytes, bytes] | None:
    """Return topic and key as bytes in records; None if they can be compared only as text."""
    if _REPLACED in sought.topic or _REPLACED in sought.key:
        return None
    try:
        return sought.topic.encode(), sought.key.encode()
    except UnicodeEncodeError:
        return None


def _in_place(
    log: SegmentedLog, log_offset: int, sought: KeySought, texts: tuple[bytes, bytes]
) -> StoredMessage | Literal[False] | None:
    """Return the message at a log offset, None if it does not match, False if the kernel found no valid one."""
    segment = log.find(log_offset)
    if segment is None or not segment.lease.hold():
        return False
    try:
        position = log_offset - segment.base_offset
        return record_with_key(
            written_part(segment), position, log_offset, *texts, sought.begin_ms, sought.end_ms, log.coverage.packed
        )  # fmt: skip
    finally:
        segment.lease.release()


def written_part(segment: Segment) -> memoryview:
    """Return the written part of a mapped segment; the caller holds its lease."""
    view = segment.view()
    return view if segment.mapped_end >= len(view) else view[: segment.mapped_end]


class TimeSearch:
    """Searches the store times of one queue, which never decrease. Not thread-safe.

    A record that cannot be read counts with the time of the next readable one.
    """

    def __init__(
        self,
        log: SegmentedLog,
        index: QueueReader,
        name: tuple[str, int],
        bounds: tuple[int, int],
        read: Callable[[int, int, int], StoredMessage | None],
    ) -> None:
        """Search a queue between two queue offsets.

        `read` returns the message of an entry, given log offset, size and queue offset; None if there is no valid one.
        """
        topic, queue = self._name = name
        self._log = log
        self._index = index
        self._read = read
        self._place = QueuePosition.of(topic, queue)
        self._low, self._high = bounds

    def first_from(self, bound_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a time; the queue's end if none."""
        first, stop = self._low, self._high
        while stop - first > _CHUNK:
            middle = (first + stop) // 2
            seen = self._time_at(middle, stop)
            if seen is not None and seen < bound_ms:
                first = middle + 1
            else:
                stop = middle
        return self._first_within(first, stop, bound_ms)

    def _time_at(self, at: int, stop: int) -> int | None:
        """Return the store time of the first record in [at, stop) that can be read."""
        place = self._index.place(*self._name, at)
        seen = None if place is None else self._time_of(*place, at)
        at += 1
        while seen is None and at < stop:
            entries = self._index.entries(*self._name, at, min(at + _CHUNK, stop))
            if len(entries.sizes) == 0:
                at = max(self._index.resume_at(*self._name, at), at + 1)
            for log_offset, size in zip(
                entries.log_offsets.tolist(), entries.sizes.tolist(), strict=True
            ):
                seen = self._time_of(log_offset, size, at)
                if seen is not None:
                    break
                at += 1
        return seen

    def _first_within(self, first: int, stop: int, bound_ms: int) -> int:
        """Return the result of `first_from` within a few entries, which are read at once."""
        offsets, sizes, _ = self._index.entries(*self._name, first, stop)
        places = list(zip(offsets.tolist(), sizes.tolist(), strict=True))
        start, last = first, first + len(places)
        while first < stop:
            middle = (first + stop) // 2
            seen = None
            for at in range(middle, min(stop, last)):
                seen = self._time_of(*places[at - start], at)
                if seen is not None:
                    break
            if seen is None and last < stop:
                seen = self._time_at(max(middle, last), stop)
            if seen is not None and seen < bound_ms:
                first = middle + 1
            else:
                stop = middle
        return first

    def _time_of(self, log_offset: int, size: int, queue_offset: int) -> int | None:
        seen = self._time_in_place(log_offset, size, queue_offset)
        if seen is None and size:
            message = self._read(log_offset, size, queue_offset)
            return None if message is None else message.store_time_ms
        return seen

    def _time_in_place(self, log_offset: int, size: int, queue_offset: int) -> int | None:
        """Return the store time of a record, if it is the one of the entry."""
        log = self._log
        segment = log.find(log_offset)
        if segment is None or not FIXED_SIZE <= size <= segment.end_offset - log_offset:
            return None
        if not segment.lease.hold():
            return None
        try:
            window: Buffer
            if log.is_mapped:
                window, position = written_part(segment), log_offset - segment.base_offset
            elif size > _SHORT_BYTES:
                return None
            else:
                window, position = log.read_from(segment, log_offset, size), 0
            return record_time(window, position, log_offset, size, *self._place, queue_offset)
        except OffsetError:
            return None
        finally:
            segment.lease.release()
