"""Each fault in the tables is found by the tests that are named beside it; see `planting`."""

import pytest
from tests.plants.hunting import missed, run
from tests.plants.planting import Plant, plants

PLANTS = plants()
# What the mechanism itself is tried with.
TRIAL = Plant(
    "the largest vote does not count",
    "penstock.retention.runner",
    "going = max(vote",
    "going = min(vote",
    ("tests/unit/retention/test_runner.py::test_votes_are_not_added_up[counts0-3]",),
)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_by_its_tests(name: str) -> None:
    plant = PLANTS[name]
    out = missed(plant)
    assert not out, f"not found: {plant.about}\n{out}"


def test_without_the_fault_the_test_passes() -> None:
    """Of the others the ordinary run says that."""
    assert not missed(TRIAL)
    assert run(TRIAL, planted=False)[0] == 0
