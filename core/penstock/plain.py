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
    PROPERTIES_BYTES_MAX,
    STORE_IPV6,
    V1_TOPIC_BYTES_MAX,
)

# Where the body begins, with both hosts in IPv4.
BODY_AT = 88
_LOW_WORD = 0xFFFFFFFF
_CRC_NAME = np.frombuffer(b"__CRC32#", np.uint32)


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
    words = _words(overlapping(raw, BODY_AT)[positions])
    body_sizes = words[21]
    text_sizes = sizes - body_sizes
    text_sizes -= BODY_AT + 1 + len(name) + 2
    odd = words[0] ^ sizes
    odd |= words[1] ^ MAGIC_V1
    odd |= words[3] ^ queue
    odd |= _wide(words, 5) ^ ordinals
    odd |= _wide(words, 7) ^ records.log_offsets
    odd |= words[9] & (BORN_IPV6 | STORE_IPV6)
    # The sign of either.
    odd |= (body_sizes | text_sizes) >> 63
    if odd.any():
        return None
    tails = overlapping(raw, len(name) + 3)[positions + (BODY_AT + body_sizes)]
    if not _end_well(raw, positions + sizes, tails.view(np.uint8), name, text_sizes):
        return None
    return body_sizes, words[2]


def _words(heads: np.ndarray) -> Int64s:
    """Return the 32-bit fields of records' heads, one row a field."""
    fields = heads.view(">i4").reshape(-1, BODY_AT // 4)
    return fields.T.astype(np.int64, order="C")


def _wide(words: Int64s, at: int) -> Int64s:
    """Return a field of 64 bits."""
    wide: Int64s = (words[at] << 32) | (words[at + 1] & _LOW_WORD)
    return wide


def _end_well(
    raw: np.ndarray, ends: Int64s, tails: np.ndarray, topic: bytes, text_sizes: Int64s
) -> bool:
    """Say whether topics and the lengths behind them are right, and no properties end in a zero or a CRC."""
    tails = tails.reshape(len(ends), -1)
    longest = int(text_sizes.max())
    if longest > PROPERTIES_BYTES_MAX:
        return False
    if (tails[:, :-2] != np.frombuffer(bytes([len(topic)]) + topic, np.uint8)).any():
        return False
    if ((tails[:, -2].astype(np.int64) << 8 | tails[:, -1]) != text_sizes).any():
        return False
    last = raw[ends - 1]
    if not last.all() and ((last == 0) & (text_sizes > 0)).any():
        return False
    if longest < CRC_PROPERTY_SIZE:
        return True
    # Where properties are shorter this is part of a body: then the other checks tell.
    return not (overlapping(raw, 8)[ends - 20].view(np.uint32).reshape(-1, 2) == _CRC_NAME).any()
