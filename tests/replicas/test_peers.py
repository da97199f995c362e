"""Stories of a master and its copies by the thousand; see `story`."""

import traceback

import pytest
from tests.lanes import SEED, rounds
from tests.replicas.story import Story

# They can be played side by side.
PARTS = 2
STEPS = 400


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_to_the_lines_no_promise_is_broken(part: int) -> None:
    for number in range(part, rounds(gate=200, night=100_000), PARTS):
        try:
            Story(f"{SEED} {number}").play(STEPS)
        except Exception:
            pytest.fail(f"PENSTOCK_SEED={SEED}, story {number}\n{traceback.format_exc()}")
