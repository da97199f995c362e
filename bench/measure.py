"""How everything is measured: one process per engine, turns in a changing order, figures by round.

A figure is a time (less is better), one per round and engine. Engines take turns within each round, so anything that
slows the machine slows all of them; ratios are computed within a round, and then their median.
"""

import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from bench import before
from bench.before import NoCommitError
from bench.engines import ENGINES, redis
from bench.process import EngineError, EngineProcess
from bench.rocketmq import NoJavaError, build
from bench.supply import make_bodies

Figures = dict[str, dict[str, list[float]]]
Opened = tuple[EngineProcess, dict[str, Any]]
Latencies = dict[str, dict[str, list[dict[str, float]]]]


# Commands of which slow engines get fewer messages.
SHARED = ("put", "consume")


@attrs.frozen(kw_only=True)
class Work:
    """One measured work.

    Attributes:
        name: its first word is the family by which `--only` selects it.
        do: the command.
        engines: the engines that run it.
        facts: the arguments of the command.
        own: additional arguments for one engine, or "do" for a different command.
        first: a command that is run before each turn, with the same count, and not measured; empty for none.
        unit: the unit of a figure, for people; nanoseconds are divided by `scale`.
    """

    name: str
    do: str
    engines: Sequence[str]
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    own: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    first: str = ""
    unit: str = "ns a message"
    scale: float = 1.0

    @property
    def family(self) -> str:
        """The word by which `--only` selects this work."""
        return self.name.split(maxsplit=1)[0].rstrip(",")

    @property
    def is_synced(self) -> bool:
        """Whether each put waits for the disk; then the bytes written to the device are counted too."""
        return self.name.startswith("sync")

    def command(self, engine: str, scale: float = 1.0) -> dict[str, Any]:
        """Return the command for one engine, with its share of the messages."""
        command = {"do": self.do, **self.facts, **self.own.get(ENGINES[engine].kind, {})}
        if "count" in command:
            share = ENGINES[engine].share if self.do.startswith(SHARED) else 1.0
            least = command.get("batch", command.get("threads", 1))
            command["count"] = max(int(command["count"] * share * scale), least)
        return command


def acked(name: str) -> str:
    """Return the name of the figure up to the last receipt, not until the queues have all messages."""
    return f"{name}, receipts"


def on_device(name: str) -> str:
    """Return the name of the figure of device bytes per message."""
    return f"{name}, device bytes"


def slowest(name: str) -> str:
    """Return the name of the figure that 99.9 % of all measurements do not exceed."""
    return f"{name}, 99.9 %"


class Bench:
    """The state of one run: its options, a folder, and the figures so far."""

    def __init__(
        self,
        home: Path,
        *,
        rounds: int,
        full: bool,
        only: Sequence[str] = (),
        scale: float = 1.0,
        commit: str = "",
    ) -> None:
        self.home = home
        self.rounds = rounds
        self.full = full
        self.only = tuple(only)
        # Below 1 for tests of the harness itself: then the figures are meaningless.
        self.scale = scale
        self.chance = random.Random(7)
        self.began = time.monotonic()
        self.figures: Figures = {}
        self.latencies: Latencies = {}
        self.units: dict[str, str] = {}
        # Kinds of engines that cannot be measured, and works that made an engine fail, with the reason.
        self.missing: dict[str, str] = {}
        self.bodies = home / "bodies"
        make_bodies(self.bodies)
        # Of each kind of engine: additional variables of its processes.
        self.variables: dict[str, dict[str, str]] = {}
        # The full name of the commit that this one is compared with; empty if there is none.
        self.commit = ""
        self._look(commit)

    def _look(self, commit: str) -> None:
        """Look for what is not installed with Penstock's own packages."""
        try:
            build()
        except NoJavaError as error:
            self._lacks("rocketmq", "the RocketMQ store", str(error))
        if why := redis.missing():
            self._lacks("redis", "redis", why)
        try:
            self.commit = before.build(commit)
            self.variables["before"] = before.environment(self.commit)
        except NoCommitError as error:
            self._lacks("before", "another commit of Penstock", str(error))

    def _lacks(self, kind: str, words: str, why: str) -> None:
        self.missing[kind] = why
        print(f"{words} is not measured: {why}", file=sys.stderr)

    def process(self, engine: str) -> EngineProcess:
        """Return a new process of an engine."""
        return EngineProcess(engine, self.variables.get(ENGINES[engine].kind))

    def wants(self, family: str) -> bool:
        """Return whether this family of work was requested."""
        return not self.only or family in self.only

    def scaled(self, count: int) -> int:
        """Return `count`, scaled for this run."""
        return max(int(count * self.scale), 1)

    def write_back(self) -> None:
        """Write everything back, so that an engine's dirty pages are not written in the next one's turn."""
        if self.scale == 1:
            os.sync()

    def there(self, engines: Sequence[str]) -> list[str]:
        """Return those of the engines that can be measured."""
        return [name for name in engines if ENGINES[name].kind not in self.missing]

    def shuffled(self, engines: Sequence[str]) -> list[str]:
        """Return the engines that can be measured in the order of a turn."""
        there = self.there(engines)
        return self.chance.sample(there, len(there))

    def note(self, work: str, engine: str, figure: float, unit: str) -> None:
        """Record one figure."""
        self.units[work] = unit
        self.figures.setdefault(work, {}).setdefault(engine, []).append(figure)

    def keep(self, work: Work, engine: str, answer: Mapping[str, Any]) -> None:
        """Record an engine's answer."""
        if "latency" in answer:
            several = self.latencies.setdefault(work.name, {}).setdefault(engine, [])
            several.append(answer["latency"])
            self.note(work.name, engine, float(answer["latency"]["50"]), "ns, median of one run")
            self.note(slowest(work.name), engine, float(answer["latency"]["99.9"]), "ns")
            return
        count = max(answer["count"], 1) * work.scale
        self.note(work.name, engine, answer["ns"] / count, work.unit)
        if "acked_ns" in answer:
            self.note(acked(work.name), engine, answer["acked_ns"] / count, work.unit)

    @contextmanager
    def surviving(self, *works: str) -> Iterator[None]:
        """Continue when an engine fails at something: the rest of a long run is still useful."""
        try:
            yield
        except EngineError as error:
            why = str(error).splitlines()[0]
            self.missing |= dict.fromkeys(works, why)
            print(f"FAILED: {', '.join(works)}: {why}", file=sys.stderr, flush=True)

    def show(self, *works: str) -> None:
        """Print the figures so far."""
        for work in works:
            found = self.figures.get(work, {})
            figures_text = ", ".join(f"{n} {statistics.median(found[n]):,.4g}" for n in found)
            seconds = time.monotonic() - self.began
            print(
                f"{seconds:4.0f} s  {work}: {figures_text}  ({self.units.get(work, '')})",
                file=sys.stderr,
                flush=True,
            )

    @contextmanager
    def fresh(self, engine: str, root: Path, number: int = 0, **facts: Any) -> Iterator[Opened]:
        """Start a process for one engine and open a store in it; yields both the process and its answer."""
        with self.process(engine) as process:
            self.write_back()
            yield process, process.open(root, self.bodies, number, **facts)


class Session:
    """Multiple engines open at once, each in its own process and folder. A context manager."""

    def __init__(self, bench: Bench, name: str, engines: Sequence[str]) -> None:
        self.bench = bench
        self.folder = bench.home / name
        self.engines = bench.there(engines)
        self.processes: dict[str, EngineProcess] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            for name in self.engines:
                process = self._stack.enter_context(self.bench.process(name))
                process.open(self.folder / name, self.bench.bodies)
                process.pause()
                self.processes[name] = process
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def all(self, do: str, **facts: Any) -> None:
        """Run something unmeasured on every engine."""
        for process in self.processes.values():
            process.call(do, **facts)
            process.pause()
        self.bench.write_back()

    def run(self, works: Sequence[Work]) -> None:
        """Warm everything up, then measure in rounds."""
        works = [work for work in works if self.bench.wants(work.family)]
        for number in range(self.bench.rounds + 1):
            for work in works:
                for name in self.bench.shuffled([e for e in work.engines if e in self.processes]):
                    with self.bench.surviving(work.name):
                        self._turn(work, name, warming=number == 0)
        for work in works:
            self.bench.show(work.name)

    def _turn(self, work: Work, name: str, *, warming: bool) -> None:
        process = self.processes[name]
        command = work.command(name, self.bench.scale)
        for _ in range(ENGINES[name].warm - 1 if warming else 0):
            process.call(**command)
        if work.first:
            process.call(work.first, count=command["count"], size=command["size"])
            self.bench.write_back()
        before = process.device_bytes()
        answer = process.call(**command)
        process.pause()
        self.bench.write_back()
        if warming:
            return
        self.bench.keep(work, name, answer)
        if work.is_synced and before is not None:
            written = (process.device_bytes() or before) - before
            self.bench.note(
                on_device(work.name), name, written / answer["count"], "bytes a message"
            )


__all__ = ["Bench", "EngineError", "Figures", "Latencies", "Session", "Work"]
