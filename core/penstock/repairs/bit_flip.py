"""Finds the single flipped bit of a block from the two checksums that the block had.

A CRC is linear: the difference of the block's CRCs before and after is the CRC of the difference of the contents. For
one flipped bit, it depends only on the bit's position. The position is found by running the CRC-32C backwards over
zero bytes until the value is that of a single bit; the second checksum, of another polynomial, must then match.
Corruption of more than one bit is mistaken for a single flipped bit in at most 1 of 2^32 cases.
"""

from penstock.format.crc32c import crc32c
from penstock.integrity.segment_digests import Sums, sums_of

_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
_LOW_OF_HIGH = {value >> 24: byte for byte, value in enumerate(_TABLE)}
_BITS = {_TABLE[1 << bit]: 1 << bit for bit in range(8)}


def flipped_bit(block: bytes, sums: Sums) -> tuple[int, int] | None:
    """Return position and mask of the bit whose flip restores `sums`; None if no single bit does."""
    left = int(crc32c(block)) ^ sums[0]
    for position in range(len(block) - 1, -1, -1):
        mask = _BITS.get(left)
        if mask is not None:
            fixed = bytearray(block)
            fixed[position] ^= mask
            return (position, mask) if sums_of(bytes(fixed)) == sums else None
        low = _LOW_OF_HIGH[left >> 24]
        left = (left ^ _TABLE[low]) << 8 | low
    return None
