"""Reads records by log offset, and checks them before they are returned.

A record is returned only if it is valid (see `validity`). For a corrupt one, `CorruptionError` names file and
position; other records are not affected. A record that is read for a queue's entry must also state that queue and
offset.
"""

from functools import lru_cache
from typing import NamedTuple

from penstock import _kernel
from penstock.contracts import is_light
from penstock.errors import CorruptionError, OffsetError
from penstock.format.arrays import Int64s
from penstock.format.record import (
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    MalformedRecordError,
)
from penstock.format.validity import check
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog
from penstock.message import StoredMessage

_READ_AT_ONCE = 1 << 20
# The maximum bytes of records that are read and checked together.
_BYTES = 4 << 20
# Two records with less than this between them are read by one call: the copy costs less than a call.
GAP_BYTES = 16 << 10
_SHORT_BYTES = 2048


class Entries(NamedTuple):
    """Queue entries that have a record, in the order of their queue."""

    ordinals: Int64s
    offsets: Int64s
    sizes: Int64s

    def head(self, count: int) -> "Entries":
        """Return the first `count` entries."""
        return Entries(*(column[:count] for column in self))

    def after(self, count: int) -> "Entries":
        """Return the entries without the first `count`."""
        return Entries(*(column[count:] for column in self))


class QueuePosition(NamedTuple):
    """The topic and queue of an entry; the entry's record must state the same ones.

    `topic` is None if the record may belong to any topic: the queues of some topics are shared.
    """

    topic: bytes | None
    queue: int

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(topic: str, queue: int) -> "QueuePosition":
        """Return the position of a queue."""
        return QueuePosition(None if is_light(topic) else topic.encode(), queue)


_ANYWHERE = QueuePosition(None, 0)


class RecordReader:
    """Reads records of a log. Safe from any thread.

    With `live`, another process may be writing: the list of segments is refreshed when a log
    offset is not found.
    """

    def __init__(self, log: SegmentedLog, *, live: bool) -> None:
        self._log = log
        self._live = live

    def bytes_at(self, log_offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes; raises `OffsetError` if the log does not have them."""
        segment = self._hold_segment(log_offset)
        try:
            if not self._has(segment, log_offset, size):
                raise self.damage(log_offset, f"{size} bytes", "the end of the file")
            return bytes(self._log.read_from(segment, log_offset, size))
        finally:
            segment.lease.release()

    def _has(self, segment: Segment, log_offset: int, size: int) -> bool:
        """Return whether bytes may be read: memory for a large stated size is allocated only if the file has it."""
        position = log_offset - segment.base_offset
        return size <= _READ_AT_ONCE or segment.has(position, size)

    def _hold_segment(self, log_offset: int) -> Segment:
        """Return the segment of a byte with a hold, which the caller must release; raises `OffsetError`."""
        segment = self._log.find(log_offset)
        if segment is None and self._live:
            self._log.refresh()
            segment = self._log.find(log_offset)
        hidden = self._log.hidden_from
        if hidden is not None:
            begin = hidden()
            if begin is not None and log_offset >= begin:
                raise OffsetError(log_offset, self._log.min_offset, begin)
        if segment is None or not segment.lease.hold():
            raise OffsetError(log_offset, self._log.min_offset, self._log.committed_offset)
        return segment

    def message(
        self, log_offset: int, size: int, place: QueuePosition = _ANYWHERE, ordinal: int = 0
    ) -> StoredMessage:
        """Return the record of `size` bytes at `log_offset`; raises `CorruptionError` if it is not valid.

        With a `place`, the record must also be the one with that ordinal in that queue: queue entries have no checksum.
        """
        if size < FIXED_SIZE:
            raise self.damage(log_offset, f"a record of at least {FIXED_SIZE} bytes", f"{size}")
        return self._check_record(self.bytes_at(log_offset, size), log_offset, place, ordinal)

    def leading(
        self, entries: Entries, place: QueuePosition, *, all_near: bool = False
    ) -> list[StoredMessage]:
        """Return the records of queue entries, up to the first that is not valid or not close to the one before.

        With `all_near`, nothing is read unless all records are close to each other. Raises `OffsetError` if the log
        does not have the first record.
        """
        log, offset = self._log, int(entries.offsets[0])
        segment = self._hold_segment(offset)
        try:
            gap = _BYTES if log.is_mapped else GAP_BYTES
            count, end = _kernel.run_of(
                entries.offsets, entries.sizes, segment.end_offset, _BYTES, gap
            )
            if all_near and count < len(entries.sizes):
                return []
            if count == 0 or not self._has(segment, offset, end - offset):
                return []
            window = log.read_from(segment, offset, end - offset)
            ordinals, offsets, sizes = (
                entries if count == len(entries.sizes) else entries.head(count)
            )
            return _kernel.messages(
                window, offset, offsets, sizes, ordinals, *place, log.coverage.packed
            )
        finally:
            segment.lease.release()

    def message_at(self, log_offset: int) -> StoredMessage:
        """Return the record that begins at `log_offset`; its size is read from the record."""
        segment = self._hold_segment(log_offset)
        try:
            room = segment.end_offset - log_offset
            if room < SIZE_AND_MAGIC.size:
                raise OffsetError(log_offset, segment.base_offset, segment.end_offset)
            # Most records are short: one read returns them completely.
            start = bytes(self._log.read_from(segment, log_offset, min(_SHORT_BYTES, room)))
        finally:
            segment.lease.release()
        size, magic = SIZE_AND_MAGIC.unpack_from(start)
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise self.damage(log_offset, "a record", f"magic {magic & 0xFFFFFFFF:08x}")
        if size > room:
            raise self.damage(log_offset, "a record that ends within its segment", f"size {size}")
        if not FIXED_SIZE <= size <= len(start):
            return self.message(log_offset, size)
        return self._check_record(start[:size], log_offset, _ANYWHERE, 0)

    def damage(self, log_offset: int, expected: str, found: str) -> CorruptionError:
        """Return a `CorruptionError` with the file and position of a log offset."""
        segment = self._log.find(log_offset)
        path = segment.path if segment else self._log.folder
        position = log_offset - segment.base_offset if segment else log_offset
        return CorruptionError(
            path, position, expected, found, "other records are not affected; see penstock verify"
        )

    def _check_record(
        self, record: bytes, log_offset: int, place: QueuePosition, ordinal: int
    ) -> StoredMessage:
        """Return a record as a message; raises `CorruptionError` if it is invalid, or not that entry's record."""
        while True:
            coverage = self._log.coverage
            found = _kernel.message(record, log_offset, *place, ordinal, coverage.packed)
            if found is not None:
                return found
            try:
                check(record, log_offset, is_covered=coverage.has(log_offset))
            except MalformedRecordError as error:
                # Another process may have changed the coverage since it was read.
                if not self._log.renew_coverage():
                    raise self.damage(log_offset, error.expected, error.found) from error
            else:
                what = f"entry {ordinal} of queue {(place.topic or b'').decode()}/{place.queue}"
                raise self.damage(log_offset, f"the record of {what}", "another record")
