"""Runs a story on real files, and kills the process at one call after another.

For strategies with their own files, for example of a database, which a simulated disk cannot hold (capability
"own-files"). All others are explored on a simulated disk (see `crash`), where more can be checked.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError
from penstock.store.store import Store
from penstock.testing.control import InlineWorkers, ManualClock
from penstock.testing.crash import Case, CrashOutcome, Plot
from penstock.testing.faults import FaultyFiles, KilledError
from penstock.testing.kit import open_store
from penstock.testing.platter import Survival
from penstock.testing.story import Promised, Story, bodies_of, wrong_with, wrong_within


def explore_kills(folder: Path, plot: Plot, points: int) -> Iterator[CrashOutcome]:
    """Run the story once to count its calls, then kill it at `points` of them, evenly spread; yields the outcomes."""
    total = _play(folder / "whole", plot, FaultyFiles(), None)[0]
    for point in range(1 + total % points // 2, total + 1, max(total // points, 1)):
        files = FaultyFiles()
        path = folder / f"at-{point}"
        promised = _play(path, plot, files, point)[1]
        files.abandon()
        try:
            problem = _wrong_at(path, plot, promised)
        except (PenstockError, OSError, AssertionError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        yield CrashOutcome(Case(point, Survival.PROCESS), files.plan.died_in, 1, problem)


def _play(path: Path, plot: Plot, files: FaultyFiles, die_at: int | None) -> tuple[int, Promised]:
    """Run the story, and die at a call if given; returns the number of calls and the guarantees."""
    clock, workers = ManualClock(), InlineWorkers()
    story = Story(plot.seed, clock)

    def opened() -> Store:
        return open_store(
            path,
            strategies=plot.strategies,
            files=files,
            clock=clock,
            spawn=workers,
            **plot.settings,
        )

    store = opened()
    if die_at is not None:
        files.plan.die_at(die_at)
    begun = files.plan.total
    with suppress(KilledError):
        story.begin(store, workers)
        for step in story.steps(plot.steps):
            if step == "reopen":
                story.close()
                story.begin(opened(), workers)
    return files.plan.total - begun, story.promised()


def _wrong_at(path: Path, plot: Plot, promised: Promised) -> str:
    """Open the store twice, and return the first problem."""
    for opening in range(2):
        with open_store(path, strategies=plot.strategies, **plot.settings) as store:
            assert store.recovery is not None
            if opening and store.recovery.state != "clean":
                return f"after a clean close the store is {store.recovery.state}"
            found = bodies_of(store)
            wrong = wrong_with(found, promised, least=promised.kept) or wrong_within(
                store, found, promised
            )
        if wrong:
            return wrong
    return ""
