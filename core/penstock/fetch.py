"""Records read back by address, checked before anyone sees them.

A record is handed out only if size, magic, stored log offset and body CRC are right (and its CRC
property, if it has one); a damaged one becomes a `CorruptionError` that names file and position, and
costs no other record. Read for a queue's entry, it must also say that it belongs there.
"""

import struct
from typing import NamedTuple, Self

from penstock.columns import Buffer
from penstock.errors import CorruptionError, OffsetError
from penstock.log import SegmentedLog
from penstock.record import (
    BORN_IPV6,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    STORE_IPV6,
    MalformedRecordError,
    check_record,
    crc32,
)
from penstock.segment import Segment
from penstock.stored import StoredMessage

_CHECKED = struct.Struct(">iiiii8xqi")
_I32 = struct.Struct(">i")
_PLACE = struct.Struct(">iiq")
_CRC_NAME = b"__CRC32#\x01"
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
        body = sound_body(record, log_offset)
        if body is None:
            raise self._explain(record, log_offset)
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
        body = sound_body(record, log_offset)
        if body is None:
            raise self._explain(record, log_offset)
        return StoredMessage(record, body)

    def damage(self, log_offset: int, expected: str, found: str) -> CorruptionError:
        """Return the error that names file and position of a log offset."""
        segment = self._log.find(log_offset)
        path = segment.path if segment else self._log.folder
        position = log_offset - segment.base_offset if segment else log_offset
        return CorruptionError(
            path, position, expected, found, "other records are not affected; see penstock verify"
        )

    def _explain(self, record: bytes, log_offset: int) -> CorruptionError:
        try:
            check_record(record, log_offset)
        except MalformedRecordError as error:
            return self.damage(log_offset, error.expected, error.found)
        return self.damage(log_offset, "a sound record", "another one")


def is_sound(record: Buffer, log_offset: int) -> bool:
    """Say whether these bytes are one whole record of that address, by every check there is."""
    return sound_body(record, log_offset) is not None


def sound_body(record: Buffer, log_offset: int) -> slice | None:
    """Return where the body stands in a sound record of that address; None if it is not one."""
    size, magic, crc, _queue, _flag, stored, sys_flag = _CHECKED.unpack_from(record)
    if size != len(record) or stored != log_offset or (magic != MAGIC_V1 and magic != MAGIC_V2):  # noqa: PLR1714 - hot
        return None
    at = 84
    if sys_flag & (BORN_IPV6 | STORE_IPV6):
        at += (12 if sys_flag & BORN_IPV6 else 0) + (12 if sys_flag & STORE_IPV6 else 0)
        if size < at + 4:
            return None
    body_size = _I32.unpack_from(record, at)[0]
    end = at + 4 + body_size
    if body_size < 0 or end >= size:
        return None
    if crc32(record[at + 4 : end]) & CRC_MASK != crc:
        return None
    if not _tail_is_sound(record, end, size, log_offset, is_v2=magic == MAGIC_V2):
        return None
    return slice(at + 4, end)


def _tail_is_sound(record: Buffer, at: int, size: int, log_offset: int, *, is_v2: bool) -> bool:
    """Check topic and properties lengths, and the CRC property of a record that ends in one."""
    length = 2 if is_v2 else 1
    topic_size = int.from_bytes(record[at : at + length], "big", signed=True)
    at += length + topic_size
    if topic_size < 0 or at + 2 > size:
        return False
    properties_size = int.from_bytes(record[at : at + 2], "big", signed=True)
    if at + 2 + properties_size != size or (properties_size and not record[size - 1]):
        return False
    # The property's name may be damaged: four bytes of it, or the other five, are looked for.
    if properties_size >= CRC_PROPERTY_SIZE and (
        record[size - 20 : size - 16] == _CRC_NAME[:4]
        or record[size - 16 : size - 11] == _CRC_NAME[4:]
    ):
        try:
            check_record(record, log_offset)
        except MalformedRecordError:
            return False
    return True
