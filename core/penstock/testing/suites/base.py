"""What all contract suites share: the two fixtures, and tests of names and options."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from penstock.contracts import CONTRACT_VERSION, Context, Strategy
from penstock.testing.control import ManualClock, ManualWorkers
from penstock.testing.crash import explore, plot_for
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
        """Return the file system that the strategy is given."""
        return FaultyFiles()

    @pytest.fixture
    def workers(self) -> ManualWorkers:
        """Return background threads that run when the test says so."""
        return ManualWorkers()

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return a clock that stands still until the test moves it."""
        return ManualClock()

    @pytest.fixture
    def context(
        self, tmp_path: Path, files: FaultyFiles, workers: ManualWorkers, clock: ManualClock
    ) -> Context:
        """Return what the kernel would lend the strategy."""
        return make_context(tmp_path / "store", files=files, spawn=workers, clock=clock)

    def test_it_is_a_strategy_of_this_contract(self, strategy: type[Strategy]) -> None:
        """It derives from the contract, has a name in kebab-case, and leaves no method out."""
        assert issubclass(strategy, self.contract)
        assert strategy.name == strategy.name.lower()
        assert " " not in strategy.name
        assert not getattr(strategy, "__abstractmethods__", None)
        assert strategy.needs_contract <= CONTRACT_VERSION
        registry_with([strategy])

    def test_options_are_frozen_and_have_defaults(self, strategy: type[Strategy]) -> None:
        """The configuration may leave every option out, and nothing changes one later."""
        assert attrs.has(strategy.Options)
        made = strategy.Options()
        for field in attrs.fields(strategy.Options):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(made, field.name, None)

    def test_it_says_what_it_is(self, strategy: type[Strategy]) -> None:
        """Its docstring is shown to who lists plugins; capabilities are a set of words."""
        assert (strategy.__doc__ or "").strip()
        assert isinstance(strategy.capabilities, frozenset)
        assert all(isinstance(word, str) for word in strategy.capabilities)

    def test_conflict_answers_a_reason_or_none(self, strategy: type[Strategy]) -> None:
        """It is asked before a store opens, with whatever else is picked."""
        picks = {kind: ["other"] for kind in ("write", "alloc", "flush", "index", "retention")}
        reason = strategy.conflict(picks)
        assert reason is None or reason.strip()

    def test_a_crash_anywhere_keeps_what_was_promised(self, strategy: type[Strategy]) -> None:
        """A store with it, on a disk that forgets what was not synced, crashed all over a story."""
        if "own-files" in strategy.capabilities:
            pytest.skip("its files are not touched through Context.files; see `explore_kills`")
        outcomes = list(explore(plot_for(strategy), cases=48))
        assert not [outcome.problem for outcome in outcomes if outcome.problem]
        assert len(outcomes) > 20
