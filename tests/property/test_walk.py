"""The walk along a log against its definition, a record at a time, over bytes that nobody wrote."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import walking
from penstock.record import FIXED_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

_SOUND = st.tuples(st.integers(FIXED_SIZE, 140), st.sampled_from([MAGIC_V1, MAGIC_V2]))
_ODD = st.tuples(
    st.sampled_from([-3, 0, FIXED_SIZE - 1, FIXED_SIZE, 120, (1 << 31) - 1]),
    st.sampled_from([MAGIC_V1, MAGIC_V2, MAGIC_BLANK, 0, 5]),
)
# Mostly sound, or no walk would come far.
_HEADS = st.lists(st.one_of(_SOUND, _SOUND, _SOUND, _SOUND, _ODD), max_size=8)


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


@settings(max_examples=500)
@given(
    heads=_HEADS,
    cut=st.one_of(st.just(0), st.integers(0, 150)),
    at_once=st.sampled_from([1, 2, 3, 1024]),
)
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
    begins_larger = found.stop == 0 and found.reason == "end" and len(window) >= 8
    assert found.first_size == (struct.unpack_from(">i", window)[0] if begins_larger else 0)
