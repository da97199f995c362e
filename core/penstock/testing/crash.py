"""Crash exploration: a story on a simulated disk, crashed before every call that changes the disk.

The story is played once. Before each call the whole disk is remembered, with what the store had
promised until then; each memory is crashed in several ways (`Survival`) and opened again. The promises
must hold then, queues, index, offsets and log must agree, and `verify` must find nothing. In turns,
the opening itself is crashed at one of its calls; or what it found is taken for durable and the power is
cut once more, also after more messages were put over what was cut off; or the store is closed, and
must be clean and the same at the next open.

Everything follows from a seed: `replay` plays one case again.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs

from penstock.config import model as configuration
from penstock.contracts import (
    Allocator,
    FlushPolicy,
    QueueIndex,
    RetentionPolicy,
    SegmentWriter,
    Strategy,
)
from penstock.durability.checkpoint import Checkpoint
from penstock.errors import PenstockError
from penstock.plugins.registry import Registry
from penstock.store.open import Opener
from penstock.store.store import Store
from penstock.testing.control import InlineWorkers, ManualClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.kit import registry_with
from penstock.testing.platter import Image, Survival
from penstock.testing.story import (
    GROUP,
    QUEUES,
    TINY,
    TOPIC,
    Promised,
    Story,
    bodies_of,
    wrong_queue,
    wrong_with,
    wrong_within,
)

ROOT = Path("/store")
RAISED = (PenstockError, OSError, AssertionError, ValueError, LookupError, TypeError)
_POWER_CUTS = tuple(each for each in Survival if each is not Survival.PROCESS)


@attrs.frozen
class Case:
    """One crash: before the n-th call of the story, and what survived it."""

    point: int
    survival: Survival


@attrs.frozen
class CrashOutcome:
    """What came of one crash. `states` counts the crashed disks that were opened; `problem` is "" if all is well."""

    case: Case
    call: str
    states: int
    problem: str
    command: str = ""


def _without_retention(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings under which, unless they say otherwise, nothing goes but what the story lets go."""
    return {"retention": [], **settings}


@attrs.frozen
class Plot:
    """Which store a story is played on, and from which seed.

    Args:
        seed: what the story and all chance come from.
        settings: which strategies to use, as for `penstock.open`.
        strategies: classes that need not be installed.
        steps: how long the story is.
        write_back: how likely, at each call, the system writes back some pages by itself.
    """

    seed: int = 0
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=_without_retention)
    strategies: Sequence[type[Strategy]] = ()
    steps: int = 24
    write_back: float = 0.05

    def command(self, case: Case) -> str:
        """Return the command that plays one case again."""
        settings = shlex.quote(json.dumps(dict(self.settings)))
        return (
            f"python -m penstock.testing.soak --seed {self.seed} --steps {self.steps} --point "
            f"{case.point} --survival {case.survival.value} --settings {settings}"
        )


def plot_for(cls: type[Strategy], seed: int = 0) -> Plot:
    """Return a plot of a store that uses this strategy beside the built-in ones; it need not be installed."""
    kind = "index"
    if issubclass(cls, SegmentWriter):
        kind = "write"
    elif issubclass(cls, Allocator):
        kind = "alloc"
    elif issubclass(cls, FlushPolicy):
        kind = "flush"
    elif issubclass(cls, RetentionPolicy):
        kind = "retention"
    picks: Any = [cls.name] if kind == "retention" else cls.name
    if kind == "index":
        queues = [cls.name] if issubclass(cls, QueueIndex) else ["consume-queue"]
        picks = list(dict.fromkeys([*queues, "hash-index", cls.name]))
    return Plot(seed=seed, settings={kind: picks}, strategies=(cls,))


def explore(
    plot: Plot,
    *,
    cases: int | None = None,
    survivals: Sequence[Survival] = tuple(Survival),
) -> Iterator[CrashOutcome]:
    """Play the story and crash it before each call, in each way; yields what came of each.

    Args:
        plot: the story and the store.
        cases: about so many, evenly spread, instead of all.
        survivals: the ways.
    """
    stage = Stage(plot)
    every = 1
    try:
        if cases is not None:
            total = sum(1 for _ in stage.play())
            every = max(total * len(survivals) // cases, 1)
        for memory in stage.play():
            if memory.point % every == plot.seed % every:
                for survival in survivals:
                    yield stage.crash(memory, survival)
    except AssertionError as error:
        yield CrashOutcome(Case(0, Survival.PROCESS), "no call", 0, f"without any crash: {error}")


def replay(plot: Plot, case: Case) -> CrashOutcome:
    """Play one case again."""
    stage = Stage(plot)
    for memory in stage.play():
        if memory.point == case.point:
            return stage.crash(memory, case.survival)
    raise ValueError(f"the story has no call {case.point}")


@attrs.frozen
class Memory:
    """The disk just before a call, and what had been promised."""

    point: int
    call: str
    image: Image
    promised: Promised


class Stage:
    """Plays one plot and looks at what its crashes leave."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self._registry: Registry = registry_with(plot.strategies)
        sizes = {f"geometry.{name}": size for name, size in attrs.asdict(TINY).items()}
        given = configuration.gather(None, {}, {**sizes, **plot.settings})
        self._config = configuration.build(given, self._registry)

    def open(self, disk: SimulatedDisk, *, read_only: bool = False) -> tuple[Store, InlineWorkers]:
        """Open the store on a disk."""
        workers = InlineWorkers()
        clock = disk.clock
        opener = Opener(ROOT, self._config, self._registry, disk, clock, workers)
        return (opener.open_for_reading() if read_only else opener.open_for_writing()), workers

    def play(self) -> Iterator[Memory]:
        """Play the story; yields a memory for each call, a step's calls at a time."""
        clock = ManualClock()
        disk = SimulatedDisk(clock=clock, seed=self.plot.seed, write_back=self.plot.write_back)
        story = Story(self.plot.seed, clock, verifies=True)
        memories: list[Memory] = []

        def remember(call: str, path: Path) -> None:
            about = f"{call} {path.name}"
            memories.append(Memory(disk.plan.total, about, disk.image(), story.promised()))

        disk.plan.watch = remember
        story.begin(*self.open(disk))
        for step in story.steps(self.plot.steps):
            if step == "reopen":
                story.close()
                story.begin(*self.open(disk))
            yield from memories
            memories.clear()

    def crash(self, memory: Memory, survival: Survival) -> CrashOutcome:
        """Crash one memory in one way, open what is left, and say what is wrong with it."""
        case = Case(memory.point, survival)
        chance = Random(f"{self.plot.seed} {case.point} {survival.value}")
        look = Look(self, memory.promised, survival, chance)
        try:
            problem = look.at(memory.image)
        except RAISED as error:
            problem = f"{type(error).__name__}: {error}"
        command = self.plot.command(case) if problem else ""
        return CrashOutcome(case, memory.call, look.states, problem, command)


class Look:
    """One crash and what follows it."""

    def __init__(
        self,
        stage: Stage,
        promised: Promised,
        survival: Survival,
        chance: Random,
        *,
        has_failed: bool = False,
    ) -> None:
        """Look at what one crash left; `has_failed` says that a call had failed before, which may leave half a record."""
        self._has_failed = has_failed
        self._stage = stage
        self._promised = promised
        self._survival = survival
        self._chance = chance
        self.states = 0

    def at(self, image: Image) -> str:
        """Return what is wrong after the crash; "" for nothing."""
        promised = self._promised
        is_kill = self._survival is Survival.PROCESS
        least = promised.kept if is_kill else promised.durable
        disk = self._crashed(image, self._survival)
        wrong = self._read_only(disk) if self._chance.random() < 0.2 else ""
        if wrong or self._chance.random() < 0.25:
            return wrong or self._crash_the_opening(disk, least)
        times = Checkpoint(disk, ROOT).read()
        # A write may be torn within one of the times; RocketMQ begins at the lesser.
        checkpoint_ms = min(times.log_ms, times.queues_ms)
        store, workers = self._stage.open(disk)
        found = bodies_of(store)
        follow = self._chance.choice((self._close, self._cut_again, self._put_and_cut))
        wrong = wrong_with(found, promised, least=least)
        wrong = wrong or wrong_within(store, found, promised, checkpoint_ms)
        assert store.recovery is not None
        assert store._engine is not None
        left = store.recovery.cut_bytes
        is_whole = store._engine.log.tail.writer.commits_at_once and not self._has_failed
        if is_kill and left and is_whole:
            # A broker goes on over what looks like a record there, wherever that record once stood.
            wrong = wrong or f"a kill left {left} bytes behind the log's end"
        # Where the tail was lost the offset was set back, and further messages do not move it.
        self._promised = attrs.evolve(promised, offset=store.committed_offset(GROUP, TOPIC, 0))
        return wrong or follow(disk, store, workers, found)

    def _crashed(self, image: Image, survival: Survival) -> SimulatedDisk:
        self.states += 1
        # The machine was off for a while.
        clock = ManualClock(1_700_000_000_000 + 3_600_000 * self.states)
        return SimulatedDisk.after(image, survival, self._chance, clock=clock)

    def _read_only(self, disk: SimulatedDisk) -> str:
        """A reader that comes before the next writer sees messages of each queue, in order, unaltered.

        After a power cut not all of them: queue files reach the disk by themselves, and only the next
        writer brings them up to the log.
        """
        try:
            store, _ = self._stage.open(disk, read_only=True)
        except PenstockError:
            # There may be no store yet.
            return "" if not self._promised.durable else "a reader cannot open it"
        with store:
            is_whole = self._survival is Survival.PROCESS
            wrong = (
                wrong_queue(store, self._promised, q, is_whole=is_whole) for q in range(QUEUES)
            )
            return next(filter(None, wrong), "")

    def _again(self, image: Image, survival: Survival, found: list[bytes], when: str) -> str:
        """Crash once more, and expect exactly the messages that the first opening found."""
        disk = self._crashed(image, survival)
        store, _ = self._stage.open(disk)
        seen = bodies_of(store)
        if seen != found:
            return f"{when} it holds {len(seen)} messages, before that {len(found)}, or others"
        return wrong_within(store, seen, self._promised)

    # --- what follows the first opening

    def _close(
        self, disk: SimulatedDisk, store: Store, _workers: InlineWorkers, found: list[bytes]
    ) -> str:
        store.close()
        again, _ = self._stage.open(disk)
        assert again.recovery is not None
        if again.recovery.state != "clean":
            return f"after a clean close the store is {again.recovery.state}"
        if bodies_of(again) != found:
            return "after a clean close it holds other messages"
        return ""

    def _cut_again(
        self, disk: SimulatedDisk, _store: Store, _workers: InlineWorkers, found: list[bytes]
    ) -> str:
        """What an opening has shown is durable."""
        survival = self._chance.choice(_POWER_CUTS)
        return self._again(disk.image(), survival, found, "after a power cut behind the opening")

    def _put_and_cut(
        self, disk: SimulatedDisk, store: Store, workers: InlineWorkers, found: list[bytes]
    ) -> str:
        """Put a message of the size of one that was cut off, so that what lay behind that one would fit."""
        after = int(found[-1].partition(b":")[0]) + 1 if found else 0
        sent = self._promised.sent
        lost = sent[after] if after < len(sent) else b"%d:" % after
        body = lost[: lost.index(b":") + 1] + b"~" * (len(lost) - lost.index(b":") - 1)
        queue = after % QUEUES
        if queue == 0 and self._promised.offset and store.max_offset(TOPIC, 0) == 0:
            # All of that queue was lost: its first message sets the offset back, so that the group gets it.
            self._promised = attrs.evolve(self._promised, offset=0)
        store.put(TOPIC, body, queue=queue, keys=[f"k{after}"])
        with suppress(IndexError):
            workers.run_all()
        store.flush()
        survival = self._chance.choice(tuple(Survival))
        return self._again(
            disk.image(), survival, [*found, body], "after one more message and a crash"
        )

    def _crash_the_opening(self, disk: SimulatedDisk, least: int) -> str:
        """Crash the opening at one of its calls: the next one ends where the first would have."""
        calls: list[Image] = []
        disk.plan.watch = lambda _call, _path: calls.append(disk.image())
        store, _ = self._stage.open(disk)
        found = bodies_of(store)
        wrong = wrong_with(found, self._promised, least=least)
        if wrong or not calls:
            return wrong
        second = self._chance.choice(tuple(Survival))
        disk = self._crashed(self._chance.choice(calls), second)
        store, _ = self._stage.open(disk)
        seen = bodies_of(store)
        # A kill and then a power cut leave what a power cut alone would, which may be less.
        is_less = self._survival is Survival.PROCESS and second is not Survival.PROCESS
        if not is_less and seen != found:
            return f"after a crash of the opening it holds {len(seen)} messages, not {len(found)}"
        return wrong_with(seen, self._promised, least=self._promised.durable) or wrong_within(
            store, seen, self._promised
        )
