"""Reads the topic, queue and queue offset that a record at a log offset states."""

import struct

from penstock.contracts import LogView
from penstock.errors import OffsetError
from penstock.format.record import BORN_IPV6, MAGIC_V1, MAGIC_V2, STORE_IPV6

Key = tuple[str, int]

# Size, magic, queue, queue offset, stored log offset, sys flag of a record.
_HEAD = struct.Struct(">ii4xi4xqqi")
_INT = struct.Struct(">i")
# Up to the born host, and the fields between hosts and body.
_FIXED, _BEFORE_BODY = 48, 12


def is_backed(log: LogView, key: Key, ordinal: int, log_offset: int) -> bool:
    """Return whether the record at a log offset is the one that belongs at this place of a queue.

    Its checksums are not checked: the question is which queue it belongs to, not whether it can be read.
    """
    topic = key[0].encode()
    try:
        head = bytes(log.read(log_offset, _HEAD.size))
        size, magic, queue, queue_offset, stored, flags = _HEAD.unpack(head)
        is_here = stored == log_offset and magic in (MAGIC_V1, MAGIC_V2)
        if not (is_here and queue == key[1] and queue_offset == ordinal):
            return False
        hosts = (20 if flags & BORN_IPV6 else 8) + (20 if flags & STORE_IPV6 else 8)
        at = log_offset + _FIXED + hosts + 8 + _BEFORE_BODY
        (body_size,) = _INT.unpack(bytes(log.read(at, _INT.size)))
        width = 2 if magic == MAGIC_V2 else 1
        at += _INT.size + body_size
        if body_size < 0 or at + width + len(topic) > log_offset + size:
            return False
        found = bytes(log.read(at, width + len(topic)))
    except OffsetError:
        return False
    return found == len(topic).to_bytes(width, "big") + topic
