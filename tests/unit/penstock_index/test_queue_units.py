"""Units of extension files and their addresses: one table for both directions, and what can be none."""

import numpy as np

from penstock_index.queue_units import (
    ADDRESS_MAX,
    FILE_BYTES_MIN,
    OFFSET_MAX,
    UNIT,
    addresses_of,
    are_addresses,
    are_valid_units,
    make_units,
    offsets_of,
)


def test_an_address_is_the_offset_below_every_tag_hash() -> None:
    offsets = np.array([0, 20, OFFSET_MAX])
    codes = addresses_of(offsets)
    assert offsets_of(codes).tolist() == offsets.tolist()
    assert codes.tolist() == [-(1 << 63), -(1 << 63) + 20, ADDRESS_MAX]
    assert are_addresses(codes).all()
    assert not are_addresses(np.array([ADDRESS_MAX + 1, -1, 0, 1 << 62])).any()


def test_a_unit_has_the_bytes_that_java_writes() -> None:
    (unit,) = make_units(np.array([5]), np.array([7]))
    expected = (20).to_bytes(2, "big") + (5).to_bytes(8, "big") + (7).to_bytes(8, "big") + bytes(2)
    assert unit.tobytes() == expected


def test_only_what_fits_and_agrees_with_itself_can_be_a_unit() -> None:
    rows = np.array([(20, 5, 7, 0), (25, 5, 7, 5), (20, 5, 7, 1), (19, 5, 7, -1), (20, ADDRESS_MAX, 7, 0)], UNIT)  # fmt: skip
    at = np.zeros(len(rows), np.int64)
    assert are_valid_units(rows, at, 1000).tolist() == [True, True, False, False, False]
    assert are_valid_units(rows[:1], at[:1], FILE_BYTES_MIN).tolist() == [True]
    assert are_valid_units(rows[:1], at[:1] + 1, FILE_BYTES_MIN).tolist() == [False]
