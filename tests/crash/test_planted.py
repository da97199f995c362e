"""Each bug planted on purpose is found by the fault test that is there for it; see `plants`."""

import pytest
from tests.crash.plants import PLANTS, hunt


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert hunt(name), f"nothing found: {PLANTS[name].about}"


@pytest.mark.parametrize("name", ["wrong-lock", "unbound-chain"])
def test_without_the_bug_nothing_is_found(name: str) -> None:
    """The others hunt by explorations, which the matrix runs without bugs for every combination."""
    assert not hunt(name, planted=False)
