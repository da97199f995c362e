"""A story: the same steps from the same seed, and a model that knows what may not be missing."""

from pathlib import Path

from penstock.store.store import Store
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, open_store
from penstock.testing.story import Story, bodies_of


def played(seed: int, steps: int = 12) -> tuple[list[str], Story, Store]:
    disk, clock, workers = SimulatedDisk(), ManualClock(), InlineWorkers()
    story = Story(seed, clock)

    def opened() -> Store:
        return open_store(Path("/s"), files=disk, clock=clock, spawn=workers, retention=[])

    story.begin(opened(), workers)
    names = []
    for step in story.steps(steps):
        names.append(step)
        if step == "reopen":
            story.close()
            store = opened()
            story.begin(store, workers)
    return names, story, story.store


def test_the_same_seed_tells_the_same_story() -> None:
    (one, first, _), (other, second, _) = played(3), played(3)
    assert one == other
    assert first.sent == second.sent
    assert played(4)[1].sent != first.sent


def test_a_story_ends_with_a_clean_close_after_which_all_is_durable() -> None:
    names, story, store = played(5)
    assert names[-1] == "reopen"
    promised = story.promised()
    assert promised.durable == promised.kept == promised.count == len(story.sent)
    assert set(bodies_of(store)) <= set(story.sent)
    assert story.is_open
