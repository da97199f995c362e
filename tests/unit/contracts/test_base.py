"""What every strategy has and is lent: defaults that change nothing."""

from pathlib import Path

import attrs
import pytest

from penstock.contracts.base import Context, NoOptions, Strategy
from penstock.contracts.history import NO_HISTORY
from penstock.testing import make_context


class Plain(Strategy):
    """A strategy that says nothing of itself but its name."""

    name = "plain"


def test_a_strategy_that_says_nothing_conflicts_with_none_and_has_no_figures(
    tmp_path: Path,
) -> None:
    made = Plain(NoOptions(), make_context(tmp_path))
    assert Plain.conflict({"flush": ["sync"]}) is None
    assert made.stats() == {}
    assert (Plain.capabilities, Plain.Options, Plain.needs_contract) == (frozenset(), NoOptions, 1)


def test_a_strategy_keeps_the_options_and_the_context_it_is_given(tmp_path: Path) -> None:
    options, context = NoOptions(), make_context(tmp_path)
    made = Plain(options, context)
    assert made.options is options
    assert made.context is context


def test_a_context_writes_serves_from_0_and_knows_no_history_unless_told(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    assert (context.read_only, context.appenders_wait, context.log_min_offset()) == (
        False,
        False,
        0,
    )
    assert context.read_history() is NO_HISTORY


def test_a_context_is_made_by_name_and_does_not_change(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    with pytest.raises(TypeError):
        Context(tmp_path)  # type: ignore[call-arg] # that is the question
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        context.read_only = True  # type: ignore[misc] # that is the question
