"""Checks a strategy: runs its contract's suite, then a short crash exploration.

For `penstock plugins check`. If a step fails, the same step is run for the built-in strategy of the same contract. If
that passes, the strategy is at fault; if it fails, too, this machine or Penstock is. All runs in a temporary folder.

A strategy with files of its own, such as a database's (capability "own-files"), is run on real files:
the process is killed at one call after another. All others are explored on a simulated disk (see `crash`).
"""

import inspect
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from penstock.contracts import KeyIndex, QueueIndex, Strategy
from penstock.errors import PenstockError
from penstock.plugins.registry import Registry
from penstock.store.store import Store
from penstock.testing import SUITES
from penstock.testing.crash import Case, CrashOutcome, Plot, explore, plot_for
from penstock.testing.faults import FaultyFiles, KilledError
from penstock.testing.kit import InlineWorkers, ManualClock, open_store
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


_SUITE_OF = {
    "write": "SegmentWriterContract",
    "alloc": "AllocatorContract",
    "flush": "FlushPolicyContract",
    "index": "DispatcherContract",
    "retention": "RetentionPolicyContract",
    "extensions": "ExtensionContract",
    "replicate": "ReplicatorContract",
}
_REFERENCE = {
    "write": "mmap", "alloc": "on-demand", "flush": "async", "index": "hash-index", "retention": "age",
    "extensions": "messaging",
}  # fmt: skip
_MODULE = """
import pytest
import penstock.testing as testing
from penstock.plugins.registry import load_registry

class TestIt(testing.{suite}):
    @pytest.fixture
    def strategy(self):
        return load_registry().sets()[{kind!r}].get({name!r})
"""


@attrs.frozen(kw_only=True)
class Step:
    """One test of a suite, or the crash exploration, with its result.

    Attributes:
        name: the test's name, with which it can be repeated alone.
        about: a sentence that says what must hold.
        failure: the last line of the exception; None if the step passed.
    """

    name: str
    about: str
    failure: str | None = None


@attrs.frozen(kw_only=True)
class CheckResult:
    """The result of a check. `sentence` summarizes it."""

    kind: str
    name: str
    contract: str
    plugin: str
    distribution: str
    version: str
    steps: list[Step]
    blames_strategy: bool = True

    @property
    def failed(self) -> list[Step]:
        """The steps that failed."""
        return [step for step in self.steps if step.failure is not None]

    @property
    def sentence(self) -> str:
        """The result in one sentence, with the component that is at fault."""
        what = f"{self.kind} strategy {self.name!r} of {self.distribution} {self.version}"
        if not self.failed:
            return f"{what} meets the contract {self.contract}: {len(self.steps)} of {len(self.steps)} steps"
        step = self.failed[0]
        harm = "your stores were not touched"
        if not self.blames_strategy:
            return (
                f"step {step.name} also fails here for the built-in strategy {_REFERENCE[self.kind]!r}, "
                f"so this machine or Penstock is at fault, not {what}: {step.failure}; {harm}"
            )
        return (
            f"{what} (plugin {self.plugin!r}) breaks the contract {self.contract} at step {step.name} "
            f"({step.about}): {step.failure}; the plugin is at fault, and {harm}"
        )


def suite_of(kind: str, cls: type[Strategy]) -> str:
    """Return the name of the suite that a class must pass."""
    if issubclass(cls, QueueIndex):
        return "QueueIndexContract"
    if issubclass(cls, KeyIndex):
        return "KeyIndexContract"
    return _SUITE_OF[kind]


def check(
    registry: Registry,
    kind: str,
    name: str,
    *,
    only: str | None = None,
    points: int = 40,
    on_progress: Callable[[Step], None] = lambda _: None,
) -> CheckResult:
    """Check an installed strategy and return the result.

    Args:
        registry: the registry with the strategy.
        kind: the strategy's section of the configuration.
        name: the strategy's name.
        only: the name of the only step to run; None for all.
        points: how many crash points the exploration tries.
        on_progress: called after each step.
    """
    strategies = registry.sets()[kind]
    cls = strategies.get(name)
    plugin = strategies.offered_by(name)
    info = next(info for info in registry.plugins if info.entry_point == plugin)
    steps = _run(kind, cls, only, points, on_progress)
    failed = [step for step in steps if step.failure is not None]
    blames = True
    # A replicator has none: the built-in one needs a port, which may be taken.
    if failed and name != _REFERENCE.get(kind, name):
        reference = strategies.get(_REFERENCE[kind])
        again = _run(kind, reference, failed[0].name, points, lambda _: None)
        blames = not any(step.failure for step in again)
    return CheckResult(
        kind=kind, name=name, contract=strategies.contract.__name__, plugin=plugin,
        distribution=info.distribution, version=info.version, steps=steps, blames_strategy=blames,
    )  # fmt: skip


def _run(
    kind: str,
    cls: type[Strategy],
    only: str | None,
    points: int,
    on_progress: Callable[[Step], None],
) -> list[Step]:
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        for step in (
            *_run_suite(Path(folder), kind, cls, only), *_explore(Path(folder), kind, cls, only, points)
        ):  # fmt: skip
            steps.append(step)
            on_progress(step)
    return steps


class _Listener:
    """A pytest plugin that collects the result of each test."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self._about: dict[str, str] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        function = getattr(item, "function", None)
        self._about[item.nodeid] = (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.when == "call" or report.failed:
            failure = None
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                text = crash.message if crash is not None else report.longreprtext
                failure = textwrap.shorten(text, 300)
            known = self.steps.get(name)
            if known is None or known.failure is None:
                about = self._about.get(report.nodeid, "")
                self.steps[name] = Step(name=name, about=about, failure=failure)


def _run_suite(folder: Path, kind: str, cls: type[Strategy], only: str | None) -> Iterator[Step]:
    """Run the contract suite with pytest, and yield its steps."""
    if only == "crash_exploration":
        return
    suite = suite_of(kind, cls)
    assert suite in SUITES
    # A unique name: pytest caches modules by name, and the built-in strategy is run in the same process.
    module = folder / f"test_{kind}_{cls.name.replace(chr(45), chr(95))}.py"
    module.write_text(_MODULE.format(suite=suite, kind=kind, name=cls.name))
    (folder / "pytest.ini").write_text("[pytest]\n")
    listener = _Listener()
    given = [str(module), "-p", "no:cacheprovider", "-p", "no:terminal",
             "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), "--import-mode=importlib",
             "--basetemp", str(folder / "tmp")]  # fmt: skip
    if only is not None:
        given += ["-k", only.partition("[")[0]]
    with warnings.catch_warnings():
        # The suites may already be imported; then their assertions are not rewritten, which is harmless.
        warnings.simplefilter("ignore")
        code = pytest.main(given, plugins=[listener])
    if code not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        raise RuntimeError(f"the suite {suite} could not be run: pytest exited with {code!r}")
    yield from listener.steps.values()


def _explore(
    folder: Path, kind: str, cls: type[Strategy], only: str | None, points: int
) -> Iterator[Step]:
    """Run the crash exploration, and yield it as one step."""
    if only not in (None, "crash_exploration"):
        return
    plot = plot_for(cls)
    has_own_files = "own-files" in cls.capabilities
    crashes = (
        explore_kills(folder / "crash", plot, points)
        if has_own_files
        else explore(plot, cases=points)
    )
    states, failure = 0, None
    try:
        for outcome in crashes:
            states += outcome.states
            if outcome.problem:
                case = outcome.case
                failure = (
                    f"crashed before call {case.point} ({outcome.call}), with survival "
                    f"{case.survival.value!r}: {outcome.problem}"
                )
                break
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    way = "being killed" if has_own_files else "power cuts and kills"
    about = f"a store with the strategy survives {way} at its system calls, {states} states tested"
    yield Step(name="crash_exploration", about=about, failure=failure)
