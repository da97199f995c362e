"""Each bug planted on purpose is found by the fault test that is there for it; see `plants` and `gate_plants`."""

from pathlib import Path

import pytest
from tests.crash import gate_plants
from tests.crash.plants import PLANTS, hunt


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert hunt(name), f"nothing found: {PLANTS[name].about}"


@pytest.mark.parametrize("name", ["wrong-lock", "unbound-chain"])
def test_without_the_bug_nothing_is_found(name: str) -> None:
    """The others hunt by explorations, which the matrix runs without bugs for every combination."""
    assert not hunt(name, planted=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree whose kernel has all bugs of the gate in it, each behind a switch."""
    return gate_plants.built(tmp_path_factory.mktemp("gate"))


@pytest.mark.slow
@pytest.mark.parametrize("name", gate_plants.PLANTS)
def test_a_bug_planted_in_the_gate_is_found(name: str, tree: Path) -> None:
    assert gate_plants.hunt(tree, name), f"nothing found: {gate_plants.PLANTS[name].about}"
