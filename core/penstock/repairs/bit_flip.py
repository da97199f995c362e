"""Finds the one bit of a block that flipped, from the two sums that the block had.

A CRC is linear: the sums of the block as it is and as it was differ by the sum of their difference, and for
one bit that depends on nothing but its place. The place is found by running the CRC-32C backwards over
zero bytes until it is that of a lone bit; the second sum, of another polynomial, must then agree. Of
damage that is more than one bit, one in 2^32 or fewer passes for one.
"""

import crc32c

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
    """Return position and mask of the bit that makes `sums` right again; None where it is not one bit."""
    left = int(crc32c.crc32c(block)) ^ sums[0]
    for position in range(len(block) - 1, -1, -1):
        mask = _BITS.get(left)
        if mask is not None:
            mended = bytearray(block)
            mended[position] ^= mask
            return (position, mask) if sums_of(bytes(mended)) == sums else None
        low = _LOW_OF_HIGH[left >> 24]
        left = (left ^ _TABLE[low]) << 8 | low
    return None
