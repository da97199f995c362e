"""A story is told again by its seed, and a case of its exploration by its point; a process dies at points of it."""

from pathlib import Path

import pytest

from penstock.store.store import Store
from penstock.testing import SimulatedDisk
from penstock.testing.check import explore_kills
from penstock.testing.crash import Case, Plot, replay
from penstock.testing.kit import (
    InlineWorkers,
    ManualClock,
    open_store,
)
from penstock.testing.platter import Survival
from penstock.testing.story import Story


def played(seed: int, steps: int = 12) -> tuple[list[str], Story, Store]:
    disk, clock, workers = SimulatedDisk(), ManualClock(), InlineWorkers()
    story = Story(seed, clock)

    def opened() -> Store:
        return open_store(Path("/s"), files=disk, clock=clock, spawn=workers, retention=[])

    story.begin(opened(), workers)
    names = []
    for step in story.steps(steps):
        names.append(step)
        if step == "reopen":
            story.close()
            store = opened()
            story.begin(store, workers)
    return names, story, story.store


def test_the_same_seed_tells_the_same_story() -> None:
    (one, first, _), (other, second, _) = played(3), played(3)
    assert one == other
    assert first.sent == second.sent
    assert played(4)[1].sent != first.sent


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
