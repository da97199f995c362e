"""Every combination on a simulated disk, crashed before calls all over a story, in every way."""

import subprocess
import sys

import pytest
from tests.lanes import rounds
from tests.matrix.combos import ALLOWED, name_of, plot_of

from penstock.testing.crash import Case, explore
from penstock.testing.platter import Survival
from penstock_tools.matrix.report import Combo

# Crashes of each combination, evenly spread over its story, each in every way; each round of a night has other stories.
CASES = rounds(gate=8, night=120)


@pytest.mark.parametrize("combo", ALLOWED, ids=name_of)
def test_a_crash_anywhere_keeps_what_was_promised(combo: Combo) -> None:
    """A crash, what survived of it, and a second one behind or within the recovery."""
    outcomes = list(explore(plot_of(combo, steps=30), cases=CASES))
    assert not [f"{o.problem}\n    {o.command}" for o in outcomes if o.problem]
    assert sum(outcome.states for outcome in outcomes) > CASES
    assert {outcome.case.survival for outcome in outcomes} == set(Survival)


def test_the_command_of_a_crash_runs_it_again() -> None:
    command = plot_of(ALLOWED[0], steps=3).command(Case(2, Survival.BYTE))
    done = subprocess.run(
        command.replace("python", sys.executable, 1),
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("before ")
    assert done.stdout.endswith(": no problem\n")
    assert (done.returncode, done.stderr) == (0, "")
