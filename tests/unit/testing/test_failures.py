"""Failure exploration: one call fails, once or for good, and no promise is broken."""

import errno

import pytest

from penstock.testing.crash import Plot
from penstock.testing.failures import ERRNOS, Failure, explore_failures
from penstock.testing.faults import CALLS


@pytest.mark.slow
def test_a_few_failures_of_a_short_story_break_no_promise() -> None:
    outcomes = list(explore_failures(Plot(seed=1, steps=4), 3, kinds=("pwrite", "sync", "create")))
    assert [outcome.failure.call for outcome in outcomes] == ["pwrite", "sync", "create"]
    assert [outcome.problem for outcome in outcomes] == [""] * 3


def test_a_failure_says_which_call_and_how_often() -> None:
    assert str(Failure("sync", errno.EIO, 4, 1)) == "EIO at sync number 5, once"
    assert str(Failure("sync", errno.EIO, 0, None)) == "EIO at sync number 1, from then on"


def test_every_call_that_may_fail_has_an_error_that_it_may_give() -> None:
    assert set(ERRNOS) == set(CALLS) - {"sync_volume"}
    assert all(ERRNOS.values())
