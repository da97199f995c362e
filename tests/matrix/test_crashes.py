"""Every combination on a simulated disk, crashed before calls all over a story, in every way."""

import pytest
from tests.lanes import rounds
from tests.matrix.combos import ALLOWED, name_of, settings_of

from penstock.testing.crash import Plot, explore
from penstock.testing.platter import Survival
from penstock_tools.matrix.report import Combo

# Crashes of each combination, evenly spread over its story, each in every way; the soak goes on from there.
CASES = rounds(gate=8, night=120)


@pytest.mark.parametrize("combo", ALLOWED, ids=name_of)
def test_a_crash_anywhere_keeps_what_was_promised(combo: Combo) -> None:
    """A crash, what survived of it, and a second one behind or within the recovery."""
    seed = ALLOWED.index(combo)
    plot = Plot(seed=seed, settings={**settings_of(combo), **_few_buffers(combo)}, steps=30)
    outcomes = list(explore(plot, cases=CASES))
    assert not [f"{o.problem}\n    {o.command}" for o in outcomes if o.problem]
    assert sum(outcome.states for outcome in outcomes) > CASES
    assert {outcome.case.survival for outcome in outcomes} == set(Survival)


def _few_buffers(combo: Combo) -> dict[str, int]:
    return {"write.transient-pool.buffers": 2} if combo.write == "transient-pool" else {}
