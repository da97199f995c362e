"""One flipped bit is found from a digest, wherever it is."""

import os

from penstock.integrity.segment_digests import sums_of
from penstock_tools.repairs.planner import flipped_bit


def test_a_flipped_bit_is_found_in_any_place() -> None:
    block = os.urandom(70_001)
    sums = sums_of(block)
    bad = bytearray(block)
    for position in (0, 1, 35_000, 69_999, 70_000):
        for bit in (0, 7):
            bad = bytearray(block)
            bad[position] ^= 1 << bit
            assert flipped_bit(bytes(bad), sums) == (position, 1 << bit)
    bad[5] ^= 3
    assert flipped_bit(bytes(bad), sums) is None
    assert flipped_bit(b"", (1, 2)) is None
