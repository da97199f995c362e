"""The walk along a log against its definition, a record at a time, over bytes that nobody wrote."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import walking
from penstock.record import FIXED_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

_SIZES = st.one_of(
    st.integers(FIXED_SIZE, 140), st.integers(-3, FIXED_SIZE), st.just((1 << 31) - 1)
)
_MAGICS = st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V1, MAGIC_V2, MAGIC_BLANK, 0, 5])
_HEADS = st.lists(st.tuples(_SIZES, _MAGICS), max_size=6)


def walked_one_by_one(window: bytes) -> tuple[list[int], int, str]:
    """Do what `walk` says it does."""
    positions, at = list[int](), 0
    while at + 8 <= len(window):
        size, magic = struct.unpack_from(">ii", window, at)
        if magic == MAGIC_BLANK:
            return positions, at, "blank"
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_SIZE:
            return positions, at, "bad"
        if at + size > len(window):
            break
        positions.append(at)
        at += size
    return positions, at, "end"


@given(heads=_HEADS, cut=st.integers(0, 150), at_once=st.sampled_from([1, 2, 3, 1024]))
def test_a_walk_goes_where_sizes_and_magics_say(
    heads: list[tuple[int, int]], cut: int, at_once: int
) -> None:
    records = [struct.pack(">ii", *head) + bytes(max(min(head[0], 200) - 8, 0)) for head in heads]
    whole = b"".join(records)
    window = whole[: max(len(whole) - cut, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking, "_WALKED", at_once)
        found = walking.walk(memoryview(window))
    assert (found.positions.tolist(), found.stop, found.reason) == walked_one_by_one(window)
