"""Crash exploration: from a seed alone, with nothing wrong in a store of ours, and a command for each case."""

import attrs
import pytest

from penstock.contracts import FlushPolicy
from penstock.testing.crash import Case, Plot, explore, plot_for, replay
from penstock.testing.platter import Survival
from penstock_alloc.file_writer import FileWriter
from penstock_flush.none import NoFlush
from penstock_index.hash_index import HashIndexDispatcher
from penstock_retention.size import SizeRetention

PLOT = Plot(seed=2, steps=4)


@pytest.mark.slow
def test_a_few_cases_of_a_short_story_find_nothing_wrong() -> None:
    outcomes = list(explore(PLOT, cases=4))
    assert [outcome.problem for outcome in outcomes] == [""] * len(outcomes)
    assert sum(outcome.states for outcome in outcomes) >= len(outcomes) >= 4


def test_a_case_is_played_again() -> None:
    outcome = replay(PLOT, Case(9, Survival.NONE))
    assert (outcome.case, outcome.problem) == (Case(9, Survival.NONE), "")
    assert outcome.call == replay(PLOT, Case(9, Survival.NONE)).call


def test_a_plot_says_how_to_play_it_again_and_deletes_nothing_by_itself() -> None:
    command = PLOT.command(Case(7, Survival.BYTE))
    assert "--seed 2 --steps 4 --point 7 --survival byte" in command
    assert PLOT.settings == {"retention": []}
    assert attrs.evolve(PLOT, settings={"retention": ["size"]}).settings == {"retention": ["size"]}


def test_a_plot_for_a_strategy_uses_it() -> None:
    for cls, kind in ((FileWriter, "write"), (NoFlush, "flush"), (HashIndexDispatcher, "index"), (SizeRetention, "retention")):  # fmt: skip
        plot = plot_for(cls)
        assert cls in plot.strategies
        assert any(key.split(".")[0] == kind and cls.name in value for key, value in plot.settings.items())  # fmt: skip
    assert issubclass(NoFlush, FlushPolicy)
