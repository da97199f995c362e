"""Crash exploration: runs a story on a simulated disk, and crashes it before every call that changes the disk.

The story runs once. Before each call, an image of the whole disk is taken, together with the guarantees that the
store has given so far. Each image is crashed in multiple ways (`Survival`) and opened again. The guarantees must then
hold; queues, index, offsets and log must agree; and `verify` must find nothing. Each case then continues in one of
three ways. It crashes the opening itself at one of its calls. Or it cuts the power again: everything that the opening
found must still be there, also if more messages were put where the tail was cut off. Or it closes the store, which must
be clean and unchanged at the next open.

Everything is determined by a seed: `replay`, or `python -m penstock.testing.crash`, runs one case again.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs

from penstock.config import sources
from penstock.config.sources import build_config
from penstock.contracts import (
    Allocator,
    Extension,
    FlushPolicy,
    QueueIndex,
    Replicator,
    RetentionPolicy,
    SegmentWriter,
    Strategy,
)
from penstock.durability.progress import Checkpoint, Progress
from penstock.errors import PenstockError
from penstock.plugins.registry import Registry
from penstock.store.open import Opener
from penstock.store.store import Store
from penstock.testing.disk import SimulatedDisk
from penstock.testing.kit import InlineWorkers, ManualClock, registry_with
from penstock.testing.platter import Image, Survival
from penstock.testing.story import (
    GROUP,
    QUEUES,
    TINY,
    TOPIC,
    Promised,
    Story,
    bodies_of,
    messages_of,
    wrong_queue,
    wrong_with,
    wrong_within,
)

ROOT = Path("/store")
RAISED = (PenstockError, OSError, AssertionError, ValueError, LookupError, TypeError)
_POWER_CUTS = tuple(each for each in Survival if each is not Survival.PROCESS)


@attrs.frozen
class Case:
    """One crash: before which call of the story, and what survives it."""

    point: int
    survival: Survival


@attrs.frozen
class CrashOutcome:
    """The result of one crash. `states` is the number of crashed disks opened; `problem` is "" if there is none."""

    case: Case
    call: str
    states: int
    problem: str
    command: str = ""


def _without_retention(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings without retention policies, unless they set some: only the story deletes segments."""
    return {"retention": [], **settings}


@attrs.frozen
class Plot:
    """The store and the seed of a story.

    Args:
        seed: the seed of the story and of all random choices.
        settings: which strategies to use, as for `penstock.open`.
        strategies: classes that need not be installed.
        steps: number of steps of the story.
        write_back: the probability, at each call, that the system writes back some pages by itself.
    """

    seed: int = 0
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=_without_retention)
    strategies: Sequence[type[Strategy]] = ()
    steps: int = 24
    write_back: float = 0.05

    def command(self, case: Case) -> str:
        """Return the command that runs one case again."""
        settings = shlex.quote(json.dumps(dict(self.settings)))
        return (
            f"python -m penstock.testing.crash --seed {self.seed} --steps {self.steps} --point "
            f"{case.point} --survival {case.survival.value} --settings {settings}"
        )


def plot_for(cls: type[Strategy], seed: int = 0) -> Plot:
    """Return a plot of a store that uses this strategy together with the built-in ones; it need not be installed."""
    kind = "index"
    if issubclass(cls, SegmentWriter):
        kind = "write"
    elif issubclass(cls, Allocator):
        kind = "alloc"
    elif issubclass(cls, FlushPolicy):
        kind = "flush"
    elif issubclass(cls, RetentionPolicy):
        kind = "retention"
    elif issubclass(cls, Extension):
        kind = "extensions"
    elif issubclass(cls, Replicator):
        kind = "replicate"
    picks: Any = [cls.name] if kind in ("retention", "extensions") else cls.name
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
    """Run the story and crash it before each call, in each way; yields the outcome of each crash.

    Args:
        plot: the story and the store.
        cases: the approximate number of crashes, evenly spread; None for all.
        survivals: the ways in which to crash.
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
    """Run one case again and return its outcome."""
    stage = Stage(plot)
    for memory in stage.play():
        if memory.point == case.point:
            return stage.crash(memory, case.survival)
    raise ValueError(f"the story has no call {case.point}")


@attrs.frozen
class Memory:
    """The disk just before a call, and the guarantees given so far."""

    point: int
    call: str
    image: Image
    promised: Promised


class Stage:
    """Runs one plot, and checks the disks that its crashes leave. Not thread-safe."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self._registry: Registry = registry_with(plot.strategies)
        sizes = {f"geometry.{name}": size for name, size in attrs.asdict(TINY).items()}
        given = sources.gather(None, {}, {**sizes, **plot.settings})
        self._config = build_config(given, self._registry)

    def open(self, disk: SimulatedDisk, *, read_only: bool = False) -> tuple[Store, InlineWorkers]:
        """Open the store on a disk."""
        workers = InlineWorkers()
        clock = disk.clock
        opener = Opener(ROOT, self._config, self._registry, disk, clock, workers)
        return (opener.open_for_reading() if read_only else opener.open_for_writing()), workers

    def play(self) -> Iterator[Memory]:
        """Run the story; yields a memory for each call, after the step with the call has ended."""
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
        """Crash one memory in one way, open the resulting disk, and return the outcome."""
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
    """One crash and the checks after it. Not thread-safe."""

    def __init__(
        self,
        stage: Stage,
        promised: Promised,
        survival: Survival,
        chance: Random,
        *,
        has_failed: bool = False,
    ) -> None:
        """Prepare the checks of a crash. With `has_failed`, a call failed before, which may leave half a record."""
        self._has_failed = has_failed
        self._stage = stage
        self._promised = promised
        self._survival = survival
        self._chance = chance
        self.states = 0

    def at(self, image: Image) -> str:
        """Return the problem after the crash; "" if there is none."""
        promised = self._promised
        is_kill = self._survival is Survival.PROCESS
        least = promised.kept if is_kill else promised.durable
        disk = self._crashed(image, self._survival)
        if is_kill and Progress(disk, ROOT).read().flushed_offset < promised.flushed:
            return "the progress file does not record all that was made durable"
        wrong = self._read_only(disk) if self._chance.random() < 0.2 else ""
        if wrong or self._chance.random() < 0.25:
            return wrong or self._crash_the_opening(disk, least)
        times = Checkpoint(disk, ROOT).read()
        # A write may be torn within one of the times; RocketMQ uses the lesser one.
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
            # A broker would accept bytes there that look like a record, whatever their original log offset.
            wrong = wrong or f"a kill left {left} bytes after the log's end"
        # If the tail was lost, the offset was set back, and further messages do not move it.
        self._promised = attrs.evolve(promised, offset=store.committed_offset(GROUP, TOPIC, 0))
        return wrong or follow(disk, store, workers, found)

    def _crashed(self, image: Image, survival: Survival) -> SimulatedDisk:
        self.states += 1
        # The crashed machine was off for some hours.
        clock = ManualClock(1_700_000_000_000 + 3_600_000 * self.states)
        return SimulatedDisk.after(image, survival, self._chance, clock=clock)

    def _read_only(self, disk: SimulatedDisk) -> str:
        """Check that a reader before the next writer sees unaltered messages in order; return the problem.

        After a power cut it need not see all of them: queue files reach the disk independently of the log, and only
        the next writer dispatches the missing records.
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
        """Crash again, and check that exactly the messages of the first opening are there; return the problem."""
        disk = self._crashed(image, survival)
        store, _ = self._stage.open(disk)
        seen = bodies_of(store)
        if seen != found:
            return (
                f"{when} the store holds different messages: {len(seen)} now, {len(found)} before"
            )
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
            return "after a clean close the store holds other messages"
        return ""

    def _cut_again(
        self, disk: SimulatedDisk, _store: Store, _workers: InlineWorkers, found: list[bytes]
    ) -> str:
        """Cut the power again: the messages that the opening found must be durable; return the problem."""
        survival = self._chance.choice(_POWER_CUTS)
        return self._again(disk.image(), survival, found, "after a power cut following the opening")

    def _put_and_cut(
        self, disk: SimulatedDisk, store: Store, workers: InlineWorkers, found: list[bytes]
    ) -> str:
        """Put a message as long as one that was cut off, so that old bytes after it would fit; return the problem."""
        after = int(found[-1].partition(b":")[0]) + 1 if found else 0
        sent = self._promised.sent
        lost = sent[after] if after < len(sent) else b"%d:" % after
        body = lost[: lost.index(b":") + 1] + b"~" * (len(lost) - lost.index(b":") - 1)
        queue = after % QUEUES
        if queue == 0 and self._promised.offset and store.max_offset(TOPIC, 0) == 0:
            # The whole queue was lost: its first message sets the offset back, so that the group gets the message.
            self._promised = attrs.evolve(self._promised, offset=0)
        store.put(TOPIC, body, queue=queue, keys=[f"k{after}"])
        # A retention policy may delete the oldest ones.
        before = messages_of(store)
        with suppress(IndexError):
            workers.run_all()
        store.flush()
        survival = self._chance.choice(tuple(Survival))
        low = store.stats()["log_min_offset"]
        deleted = sum(message.log_offset < low for message in before)
        kept = [*found, body][deleted:]
        return self._again(disk.image(), survival, kept, "after one more message and a crash")

    def _crash_the_opening(self, disk: SimulatedDisk, least: int) -> str:
        """Crash the opening at one of its calls; the next one must find the same messages. Return the problem."""
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
        # A kill followed by a power cut leaves what a power cut alone would, which may be less.
        is_less = self._survival is Survival.PROCESS and second is not Survival.PROCESS
        if not is_less and seen != found:
            return f"after a crash of the opening the store holds {len(seen)} messages, not {len(found)}"
        return wrong_with(seen, self._promised, least=self._promised.durable) or wrong_within(
            store, seen, self._promised
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the case that `Plot.command` names; returns 1 if there is a problem, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.crash", description="Run one crash again."
    )
    parser.add_argument("--seed", type=int, required=True, help="of the story")
    parser.add_argument("--steps", type=int, required=True, help="of the story")
    parser.add_argument("--point", type=int, required=True, help="the number of the call")
    parser.add_argument("--survival", required=True, choices=[each.value for each in Survival])
    parser.add_argument("--settings", default="{}", help="settings of the store, as JSON")
    asked = parser.parse_args(arguments)
    plot = Plot(seed=asked.seed, settings=json.loads(asked.settings), steps=asked.steps)
    outcome = replay(plot, Case(asked.point, Survival(asked.survival)))
    print(f"before {outcome.call}: {outcome.problem or 'no problem'}")
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
