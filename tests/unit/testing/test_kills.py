"""A story on real files, with the process dying at one call after another."""

from pathlib import Path

import pytest

from penstock.testing.crash import Plot
from penstock.testing.kills import explore_kills
from penstock.testing.platter import Survival


@pytest.mark.slow
def test_a_store_survives_death_at_points_spread_over_the_story(tmp_path: Path) -> None:
    outcomes = list(explore_kills(tmp_path, Plot(seed=1, steps=3), 2))
    assert len(outcomes) >= 2
    for outcome in outcomes:
        assert (outcome.problem, outcome.case.survival) == ("", Survival.PROCESS)
        assert outcome.call
    points = [outcome.case.point for outcome in outcomes]
    assert points == sorted(set(points))
