"""The base of all contract suites: the two fixtures, and tests of names and options."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from penstock.contracts import CONTRACT_VERSION, Context, Strategy
from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.crash import Plot, explore, plot_for
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import make_context, registry_with


class ContractSuite(ABC):
    """Subclass one of the suites derived from this, and return your class from `strategy`."""

    contract: ClassVar[type[Strategy]]

    @pytest.fixture
    @abstractmethod
    def strategy(self) -> type[Strategy]:
        """Return the class under test."""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        """Return options other than the defaults."""
        return {}

    @pytest.fixture
    def files(self) -> FaultyFiles:
        """Return the file system that is passed to the strategy."""
        return FaultyFiles()

    @pytest.fixture
    def workers(self) -> ManualWorkers:
        """Return background workers that run only when the test runs them."""
        return ManualWorkers()

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return a clock that does not advance until the test sets it."""
        return ManualClock()

    @pytest.fixture
    def context(
        self, tmp_path: Path, files: FaultyFiles, workers: ManualWorkers, clock: ManualClock
    ) -> Context:
        """Return the context that the kernel would pass to the strategy."""
        return make_context(tmp_path / "store", files=files, spawn=workers, clock=clock)

    def test_it_is_a_strategy_of_this_contract(self, strategy: type[Strategy]) -> None:
        """The class derives from the contract, has a name in kebab-case, and implements every method."""
        assert issubclass(strategy, self.contract)
        assert strategy.name == strategy.name.lower()
        assert " " not in strategy.name
        assert not getattr(strategy, "__abstractmethods__", None)
        assert strategy.needs_contract <= CONTRACT_VERSION
        registry_with([strategy])

    def test_options_are_frozen_and_have_defaults(self, strategy: type[Strategy]) -> None:
        """Every option has a default and cannot be changed later."""
        assert attrs.has(strategy.Options)
        made = strategy.Options()
        for field in attrs.fields(strategy.Options):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(made, field.name, None)

    def test_it_says_what_it_is(self, strategy: type[Strategy]) -> None:
        """The class has a docstring, which `penstock plugins` shows; its capabilities are a frozenset of strings."""
        assert (strategy.__doc__ or "").strip()
        assert isinstance(strategy.capabilities, frozenset)
        assert all(isinstance(word, str) for word in strategy.capabilities)

    def test_conflict_answers_a_reason_or_none(self, strategy: type[Strategy]) -> None:
        """`conflict` is called before a store is opened, with the names of all picked strategies."""
        picks = {kind: ["other"] for kind in ("write", "alloc", "flush", "index", "retention")}
        reason = strategy.conflict(picks)
        assert reason is None or reason.strip()

    def crash_plot(self, strategy: type[Strategy], _options: dict[str, Any]) -> Plot:
        """Return the story, and the settings of its store, for the test of crashes."""
        return plot_for(strategy)

    def test_a_crash_anywhere_keeps_what_was_promised(
        self, strategy: type[Strategy], options: dict[str, Any]
    ) -> None:
        """A store keeps its guarantees when a disk that loses unsynced bytes is crashed anywhere in a story."""
        if "own-files" in strategy.capabilities:
            pytest.skip("its files are not touched through Context.files; see `explore_kills`")
        outcomes = list(explore(self.crash_plot(strategy, options), cases=48))
        assert not [outcome.problem for outcome in outcomes if outcome.problem]
        assert len(outcomes) > 20
