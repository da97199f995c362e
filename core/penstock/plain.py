"""Records of the usual shape, checked in few passes: V1, both hosts IPv4, of one topic, without a CRC property.

The checks are those of `columns`, for a stretch of one queue that is all alike: each pass over few records costs
a call more than it costs work. Whatever is not as usual is left to those.
"""

import numpy as np

from penstock.columns import Columns
from penstock.javatext import Int64s
from penstock.joining import overlapping
from penstock.record import (
    BORN_IPV6,
    CRC_PROPERTY_SIZE,
    FIXED_SIZE,
    MAGIC_V1,
    STORE_IPV6,
    V1_TOPIC_BYTES_MAX,
)

# Where the body begins, with both hosts in IPv4.
BODY_AT = 88
_HEAD = np.dtype({
    "names": ["size", "magic", "crc", "queue", "queue_offset", "log_offset", "sys_flag", "body"],
    "formats": [">i4", ">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i4"],
    "offsets": [0, 4, 8, 12, 20, 28, 36, 84],
    "itemsize": BODY_AT,
})  # fmt: skip
_CRC_NAME_HALVES = b"__CR", b"C32#"


def sizes_and_crcs(
    records: Columns, *, topic: str, queue: int, ordinals: Int64s, sizes: Int64s
) -> tuple[Int64s, Int64s] | None:
    """Return body sizes and stored CRCs of ascending records that are what a queue's entries say; else None.

    Only the CRC itself is left to be compared.
    """
    raw, positions, name = records.raw, records.positions, topic.encode()
    if (
        int(positions[-1]) + max(int(sizes[-1]), FIXED_SIZE) > len(raw)
        or len(name) > V1_TOPIC_BYTES_MAX
    ):
        return None
    heads = overlapping(raw, BODY_AT)[positions].view(_HEAD)
    body_sizes = heads["body"].astype(np.int64)
    text_sizes = sizes - body_sizes
    text_sizes -= BODY_AT + 1 + len(name) + 2
    odd = heads["size"] ^ sizes
    odd |= heads["magic"] ^ MAGIC_V1
    odd |= heads["queue"] ^ queue
    odd |= heads["queue_offset"] ^ ordinals
    odd |= heads["log_offset"] ^ records.log_offsets
    odd |= heads["sys_flag"] & (BORN_IPV6 | STORE_IPV6)
    # The sign of either.
    odd |= (body_sizes | text_sizes) >> 63
    if odd.any():
        return None
    topics_at = positions + body_sizes
    topics_at += BODY_AT
    if not _end_well(raw, topics_at, name, positions + sizes, text_sizes):
        return None
    return body_sizes, heads["crc"].astype(np.int64)


def _end_well(
    raw: np.ndarray, topics_at: Int64s, topic: bytes, ends: Int64s, text_sizes: Int64s
) -> bool:
    """Say whether topics and the lengths behind them are right, and no properties end in a zero or a CRC.

    What is the same for all is compared as one text, and what is at the end of each is looked for in one.
    """
    prefixed = bytes([len(topic)]) + topic
    if overlapping(raw, len(prefixed))[topics_at].tobytes() != prefixed * len(ends):
        return False
    stored = overlapping(raw, 2)[topics_at + len(prefixed)].view(">i2")
    if (stored != text_sizes).any():
        return False
    tails = overlapping(raw, CRC_PROPERTY_SIZE)[ends - CRC_PROPERTY_SIZE].tobytes()
    if 0 in tails[CRC_PROPERTY_SIZE - 1 :: CRC_PROPERTY_SIZE]:
        last = raw[ends - 1]
        if ((last == 0) & (text_sizes > 0)).any():
            return False
    # Found across two tails, or where properties are shorter, it is none: then the other checks tell.
    return not any(half in tails for half in _CRC_NAME_HALVES)
