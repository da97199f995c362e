"""Records read back by address, checked before anyone sees them.

A record is handed out only if it is valid (see `validity`); a corrupt one becomes a `CorruptionError` that
names file and position, and costs no other record. Read for a queue's entry, it must also say that it belongs there.
"""

import struct
from typing import NamedTuple, Self

from penstock.errors import CorruptionError, OffsetError
from penstock.log import SegmentedLog
from penstock.record import (
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    MalformedRecordError,
)
from penstock.segment import Segment
from penstock.stored import StoredMessage
from penstock.validity import check

_PLACE = struct.Struct(">iiq")
_READ_AT_ONCE = 1 << 20
_SHORT_BYTES = 2048
_SHARED_PREFIX = "%LMQ%"


def is_shared(topic: str) -> bool:
    """Say whether a topic's queues point to records of other topics, on purpose (spec section 3.7)."""
    return topic.startswith(_SHARED_PREFIX)


class Place(NamedTuple):
    """The topic and the queue that an entry belongs to; its record must say the same.

    `topics` holds the topic with its length before it, as a V1 and as a V2 record has it.
    """

    queue: int
    topics: tuple[bytes, bytes]
    is_shared: bool

    @classmethod
    def of(cls, topic: str, queue: int) -> Self:
        """Return the place of a queue."""
        raw = topic.encode()
        fields = (len(raw).to_bytes(2, "big")[1:] + raw, len(raw).to_bytes(2, "big") + raw)
        return cls(queue, fields, is_shared(topic))

    def has(self, record: bytes, body: slice, ordinal: int) -> bool:
        """Say whether a sound record stands at that ordinal of this queue."""
        queue, _flag, queue_offset = _PLACE.unpack_from(record, 12)
        if self.is_shared:
            return True
        return (
            queue == self.queue
            and queue_offset == ordinal
            and record.startswith(self.topics, body.stop)
        )


class RecordReader:
    """Reads records of a log. Safe from any thread.

    With `live` set another process may be writing: the list of segments is refreshed when an
    address is not found.
    """

    def __init__(self, log: SegmentedLog, *, live: bool) -> None:
        self._log = log
        self._live = live

    def bytes_at(self, log_offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes; `OffsetError` where the log has not got them."""
        segment = self._held(log_offset)
        try:
            # No size that a damaged or hostile file claims makes more memory than the file has bytes.
            if size > _READ_AT_ONCE and not segment.has(log_offset - segment.base_offset, size):
                raise self.damage(log_offset, f"{size} bytes", "the end of the file")
            return bytes(self._log.read_from(segment, log_offset, size))
        finally:
            segment.lease.release()

    def _held(self, log_offset: int) -> Segment:
        """Return the segment of a byte, held until it is released."""
        segment = self._log.find(log_offset)
        if segment is None and self._live:
            self._log.refresh()
            segment = self._log.find(log_offset)
        if segment is None or not segment.lease.hold():
            raise OffsetError(log_offset, self._log.min_offset, self._log.committed_offset)
        return segment

    def message(
        self, log_offset: int, size: int, place: Place | None = None, ordinal: int = 0
    ) -> StoredMessage:
        """Return the record of `size` bytes at `log_offset`, checked.

        With a `place`, it must also be the one of that ordinal there: queue entries have no checksum.
        """
        if size < FIXED_SIZE:
            raise self.damage(log_offset, f"a record of at least {FIXED_SIZE} bytes", f"{size}")
        record = self.bytes_at(log_offset, size)
        body = self._checked(record, log_offset)
        if place is not None and not place.has(record, body, ordinal):
            what = f"entry {ordinal} of queue {place.topics[1][2:].decode()}/{place.queue}"
            raise self.damage(log_offset, f"the record of {what}", "another one")
        return StoredMessage(record, body)

    def message_at(self, log_offset: int) -> StoredMessage:
        """Return the record that begins at `log_offset`; its size is read from it."""
        segment = self._held(log_offset)
        try:
            room = segment.end_offset - log_offset
            if room < SIZE_AND_MAGIC.size:
                raise OffsetError(log_offset, segment.base_offset, segment.end_offset)
            # Most records are short: one read brings them whole.
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
        record = start[:size]
        return StoredMessage(record, self._checked(record, log_offset))

    def damage(self, log_offset: int, expected: str, found: str) -> CorruptionError:
        """Return the error that names file and position of a log offset."""
        segment = self._log.find(log_offset)
        path = segment.path if segment else self._log.folder
        position = log_offset - segment.base_offset if segment else log_offset
        return CorruptionError(
            path, position, expected, found, "other records are not affected; see penstock verify"
        )

    def _checked(self, record: bytes, log_offset: int) -> slice:
        """Return where the body is in a valid record; `CorruptionError` if it is not one."""
        while True:
            try:
                return check(record, log_offset, is_covered=self._log.coverage.has(log_offset))
            except MalformedRecordError as error:
                # Another process may have noted another checksum since the coverage was read.
                if not self._log.renew_coverage():
                    raise self.damage(log_offset, error.expected, error.found) from error
