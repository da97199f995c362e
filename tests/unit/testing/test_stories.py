"""A case of an exploration is told again by its point; a process dies at points of a story."""

from pathlib import Path

import pytest

from penstock.testing.check import explore_kills
from penstock.testing.crash import Case, Plot, replay
from penstock.testing.platter import Survival

PLOT = Plot(seed=2, steps=4)


def test_a_case_is_played_again() -> None:
    outcome = replay(PLOT, Case(9, Survival.NONE))
    assert (outcome.case, outcome.problem) == (Case(9, Survival.NONE), "")
    assert outcome.call == replay(PLOT, Case(9, Survival.NONE)).call


@pytest.mark.slow
def test_a_store_survives_death_at_points_spread_over_the_story(tmp_path: Path) -> None:
    outcomes = list(explore_kills(tmp_path, Plot(seed=1, steps=3), 2))
    assert len(outcomes) >= 2
    for outcome in outcomes:
        assert (outcome.problem, outcome.case.survival) == ("", Survival.PROCESS)
        assert outcome.call
    points = [outcome.case.point for outcome in outcomes]
    assert points == sorted(set(points))
