"""A group's answers over every crash: none is lost that was durable, none counts that was never given, each refusal is retried once."""

from random import Random

import pytest
from tests.crash.group_story import GroupStory, Moment, wrong_after
from tests.lanes import NIGHT

from penstock.testing.disk import SimulatedDisk
from penstock.testing.platter import Survival

STEPS = 40


def crashed(moment: Moment, survival: Survival, seed: str) -> SimulatedDisk:
    return SimulatedDisk.after(moment.image, survival, Random(seed))


@pytest.mark.parametrize("seed", range(6))
def test_no_crash_loses_an_answer_or_makes_a_retry_twice(seed: int) -> None:
    chance = Random(seed)
    # Each moment is crashed in one way; at night in all.
    moments = problems = 0
    found = []
    for moment in GroupStory(seed).play(STEPS):
        if not NIGHT and chance.randrange(9):
            continue
        for survival in tuple(Survival) if NIGHT else [chance.choice(tuple(Survival))]:
            moments += 1
            disk = crashed(moment, survival, f"{seed} {moments}")
            killed = survival is Survival.PROCESS
            try:
                wrong = wrong_after(disk, moment.promised, killed=killed)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                found.append((moments, moment.call, survival.value, wrong))
    assert moments > 5
    assert found == []
    assert not problems
