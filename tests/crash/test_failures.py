"""One call to the system fails somewhere in a story: every combination, and many in one."""

import pytest
from tests.lanes import explored
from tests.matrix.combos import ALLOWED, name_of, settings_of

from penstock.matrix.combos import Combo
from penstock.testing.crash import Plot
from penstock.testing.failures import ERRNOS, explore_failures

# Each kind of call twice, or once where explorations are sampled.
COUNT = explored(2 * len(ERRNOS), least=len(ERRNOS))


@pytest.mark.parametrize("combo", ALLOWED, ids=name_of)
def test_a_call_that_fails_costs_no_promise(combo: Combo) -> None:
    """Named error or none; after the power is cut, all that was promised is there."""
    settings = settings_of(combo)
    if combo.write == "transient-pool":
        settings["write.transient-pool.buffers"] = 2
    plot = Plot(seed=ALLOWED.index(combo), settings=settings)
    outcomes = list(explore_failures(plot, COUNT))
    assert not [f"{o.failure}: {o.problem}" for o in outcomes if o.problem]
    assert len({outcome.failure.call for outcome in outcomes}) > len(ERRNOS) // 2
