"""One call to the system fails somewhere in a story: every combination, and many in one."""

import pytest
from tests.lanes import NIGHT
from tests.matrix.combos import ALLOWED, name_of, plot_of

from penstock.testing.failures import ERRNOS, explore_failures
from penstock_tools.matrix.report import Combo

# Each kind of call twice at night; in the gate each combination has some kinds, and its neighbours the others.
KINDS, COUNT = tuple(ERRNOS), 2 * len(ERRNOS)
OF_SO_MANY = 6


def kinds_of(combo: Combo) -> tuple[str, ...]:
    """Return the kinds of calls that fail for a combination."""
    return KINDS if NIGHT else KINDS[ALLOWED.index(combo) % OF_SO_MANY :: OF_SO_MANY]


@pytest.mark.parametrize("combo", ALLOWED, ids=name_of)
def test_a_call_that_fails_costs_no_promise(combo: Combo) -> None:
    """Named error or none; after the power is cut, all that was promised is there."""
    kinds = kinds_of(combo)
    outcomes = list(
        explore_failures(plot_of(combo, steps=24), COUNT if NIGHT else len(kinds), kinds=kinds)
    )
    assert not [f"{o.failure}: {o.problem}" for o in outcomes if o.problem]
    # A story that never makes most of these calls would say nothing.
    assert len({outcome.failure.call for outcome in outcomes}) > (len(kinds) - 1) // 2
