"""A story: steps that are drawn from a seed, played in a world, and made shorter if they fail.

A step is a name, and the seed of what the step draws. So it does the same whatever was left out before it, and a story
that fails is made shorter by leaving out steps. That is why these are no rules of Hypothesis: a store opens in 5 ms;
drawing and shrinking would take longer than playing.

A story may be doomed: the simulated disk then takes an image at one of the next calls that change it; the store comes
back from that image. Of the step that was going on, everything or a part or nothing may have happened.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar
from unittest import mock

import attrs
import pytest
from tests.lanes import SEED
from tests.model.worlds import DiskWorld, MakeWorld, Settings, World, drawn_settings

from penstock import PenstockError
from penstock.testing.platter import Image, Survival

Step = tuple[str, int]
LENGTHS = (15, 30, 60)
RAISED = (PenstockError, AssertionError, OSError, LookupError, ValueError, TypeError)


class StoryEnded(Exception):  # noqa: N818 - it ends a story, and is no error of it
    """The model does not know how the story goes on."""


class Player:
    """Plays the steps of a story: each is a method, `_` and its name, that gets what it draws from."""

    # How often each step is drawn, in comparison with the others.
    weights: ClassVar[Mapping[str, int]]

    def __init__(self, world: World) -> None:
        self.world = world
        self._image: Image | None = None

    def play(self, steps: Sequence[Step]) -> None:
        """Play a story; the end of each is a clean close."""
        for name, seed in [*steps, ("close", 0)]:
            self._step(name, Random(seed))
        self._end()

    def _step(self, name: str, chance: Random) -> None:
        self._begin(chance)
        getattr(self, f"_{name}")(chance)
        self._look()
        if self._image is not None:
            self._come_back(chance.choice(tuple(Survival)), chance)

    def _begin(self, chance: Random) -> None:
        """Called before each step."""
        raise NotImplementedError

    def _look(self) -> None:
        """Called after each step, also if it was one that a crash comes back from."""

    def _end(self) -> None:
        """Called after the last one."""
        raise NotImplementedError

    # --- ending

    def _doom(self, chance: Random) -> None:
        if isinstance(self.world, DiskWorld):
            self.world.watch(self._keep, chance.choice((1, 2, 3, 5, 9, 20, 50)))

    def _keep(self, image: Image) -> None:
        self._image = image

    def _kill(self, chance: Random) -> None:
        if self.world.can_die:
            self._come_back(Survival.PROCESS, chance)

    def _cut(self, chance: Random) -> None:
        if self.world.has_power:
            self._come_back(chance.choice(tuple(Survival)), chance)

    def _come_back(self, survival: Survival, chance: Random) -> None:
        """Crash, open again, and hold what is there against what was promised when the step began."""
        is_kill = self._crash(survival, chance)
        while self._image is not None:
            # The opening was crashed, too.
            is_kill &= self._crash(chance.choice(tuple(Survival)), chance)
        self._reconcile(is_kill=is_kill)

    def _crash(self, survival: Survival, chance: Random) -> bool:
        """Crash and open again; returns whether only the process died."""
        image, self._image = self._image, None
        self.world.crash(survival, image)
        if chance.random() < 0.2:
            self._doom(chance)
        self._open()
        return survival is Survival.PROCESS

    def _open(self) -> None:
        """Open the store."""
        raise NotImplementedError

    def _reconcile(self, *, is_kill: bool) -> None:
        """Called after a crash."""
        raise NotImplementedError


@attrs.frozen
class Story:
    """Steps, the settings of the store that they are done with, the seed of what the world draws, and who plays it."""

    player: type[Player]
    seed: int
    settings: Settings
    steps: list[Step]

    @classmethod
    def drawn(cls, player: type[Player], seed: int) -> "Story":
        """Return the story of a seed."""
        chance, weights = Random(seed), player.weights
        settings = drawn_settings(chance)
        names = chance.choices(list(weights), list(weights.values()), k=chance.choice(LENGTHS))
        return cls(player, seed, settings, [(name, chance.getrandbits(32)) for name in names])

    def play(self, make: MakeWorld, folder: Path) -> str:
        """Play it in a world of its own; returns why it fails, "" if it does not."""
        world, chance = make(folder, self.settings, self.seed), Random(self.seed)
        try:
            # The names of members decide who gets what.
            with mock.patch("secrets.token_hex", lambda size: chance.randbytes(size).hex()):
                self.player(world).play(self.steps)
        except StoryEnded:
            pass
        except RAISED as error:
            return f"{type(error).__name__}: {error}"
        finally:
            world.end()
        return ""

    def shortest(self, make: MakeWorld, folder: Path) -> "Story":
        """Return the story without the steps that it needs not to fail."""
        steps, size = self.steps, len(self.steps)
        while size := size // 2:
            at = 0
            while at < len(steps):
                fewer = attrs.evolve(self, steps=steps[:at] + steps[at + size :])
                if fewer.play(make, folder):
                    steps = fewer.steps
                else:
                    at += size
        return attrs.evolve(self, steps=steps)


def play_stories(
    player: type[Player], make: MakeWorld, folder: Path, count: int, part: int = 0, parts: int = 1
) -> None:
    """Play stories; of the first that fails, shows the shortest one that fails as well."""
    for number in range(part, count, parts):
        story = Story.drawn(player, SEED * 1_000_000 + number)
        if why := story.play(make, folder):
            least = story.shortest(make, folder)
            pytest.fail(
                f"{why}\nat the shortest: {least.play(make, folder)}\n"
                f"repeat with PENSTOCK_SEED={SEED}, or play {least}"
            )
