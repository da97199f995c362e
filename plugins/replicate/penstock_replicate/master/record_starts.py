"""Where records begin in the raw bytes of a log.

A record says its own log offset, so whether one begins somewhere is seen in its first 36 bytes; a blank record reaches to the end of its
segment. RocketMQ slaves cannot show that their log is ours, so they are served only from where a record begins. Since a slave appends
chunks as a whole, it is always there if every chunk ends with a record. Only a record that no slave has memory for is sent in pieces.
"""

from struct import Struct

from penstock.contracts import ReplicatedLog
from penstock.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC

_LOG_OFFSET = Struct(">q")
_LOG_OFFSET_AT = 28
_HEAD_BYTES = _LOG_OFFSET_AT + _LOG_OFFSET.size
_WINDOW_BYTES = 1 << 20


def begins_record(log: ReplicatedLog, log_offset: int) -> bool:
    """Return whether a record, or the end of what can be read, is at `log_offset`; raises `OffsetError` if it is removed."""
    if log_offset == log.visible_offset:
        return True
    head = log.read(log_offset, _HEAD_BYTES)
    if len(head) < SIZE_AND_MAGIC.size:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    if magic == MAGIC_BLANK:
        return bool(size == log.segment_bytes - log_offset % log.segment_bytes)
    if magic not in (MAGIC_V1, MAGIC_V2) or len(head) < _HEAD_BYTES:
        return False
    return bool(_LOG_OFFSET.unpack_from(head, _LOG_OFFSET_AT)[0] == log_offset)


def large_record_rest(log: ReplicatedLog, log_offset: int, limit: int) -> int:
    """Return how many bytes of a record over `limit` bytes follow `log_offset`, which is inside it; 0 if it is inside none.

    Reads the segment from its start, so it may take seconds.
    """
    position = max(log_offset - log_offset % log.segment_bytes, log.min_offset)
    while position < log_offset:
        window = log.read(position, _WINDOW_BYTES)
        at = 0
        while at + SIZE_AND_MAGIC.size <= len(window):
            size, _ = SIZE_AND_MAGIC.unpack_from(window, at)
            if size <= 0:
                return 0
            if position + at < log_offset < position + at + size:
                return position + at + size - log_offset if size > limit else 0
            at += size
            if position + at >= log_offset:
                return 0
        if not at:
            return 0
        position += at
    return 0


def whole_records(window: bytes, start: int, limit: int) -> tuple[int, int]:
    """Return the size of the whole records at `start` of a window that fit into `limit` bytes, and the size of the next one.

    The second number is 0 if the window ends before it is known.
    """
    stop, last = start, len(window) - SIZE_AND_MAGIC.size
    while stop <= last:
        size, _ = SIZE_AND_MAGIC.unpack_from(window, stop)
        if size <= 0 or stop + size > min(start + limit, len(window)):
            return stop - start, max(size, 0)
        stop += size
    return stop - start, 0
