"""A master and its copy, two stores on simulated disks: nothing promised is lost, and both have the same bytes."""

import pytest
from tests.lanes import SEED, rounds
from tests.replicas.pair import Story

BLOCKS, STORIES = 4, rounds(20, 2000)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_stories_of_a_master_and_its_copy(block: int) -> None:
    first = SEED * 1_000_000 + block * STORIES
    for seed in range(first, first + STORIES):
        why = Story.drawn(seed).play()
        if why:
            shortest = Story.drawn(seed).shortest()
            names = [name for name, _ in shortest.steps]
            pytest.fail(
                f"seed {seed}: {why}; shortest: {shortest.play()} after {names}, {shortest.settings}"
            )
