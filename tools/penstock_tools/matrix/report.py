"""Makes a report: every combination of installed strategies, measured in rounds; medians, best ones.

Each combination runs in its own process, in a different order each round.
"""

import itertools
import multiprocessing
import os
import platform
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import attrs

import penstock
from penstock.config.model import Config
from penstock.errors import ConfigError
from penstock.plugins.registry import Registry
from penstock_tools.matrix import measure
from penstock_tools.matrix.measure import FAILED, Answer, MeasurePlan

KINDS = ("write", "alloc", "flush")
_IN_MEMORY = "messages that were not committed yet, a contiguous tail"
_UNSYNCED = "messages that were not synced yet, a contiguous tail"


class Combo(NamedTuple):
    """One writer, allocator and flush policy."""

    write: str
    alloc: str
    flush: str

    @property
    def label(self) -> str:
        """The name of the combination in tables and tests."""
        return " ".join(self)

    def settings(self) -> dict[str, Any]:
        """Return the settings with which `penstock.open` picks the combination."""
        return self._asdict()

    def toml(self) -> str:
        """Return the configuration to paste."""
        return "\n".join(f'[{kind}]\nuse = "{name}"\n' for kind, name in self._asdict().items())

    def conflict(self, registry: Registry) -> str | None:
        """Return the reason why a store cannot be opened with the combination; None if it can."""
        picks: Mapping[str, Sequence[str]] = {
            **Config().for_new_store().picks(),
            **{kind: [name] for kind, name in self.settings().items()},
        }
        for kind in KINDS:
            reason: str | None = registry.sets()[kind].get(picks[kind][0]).conflict(picks)
            if reason is not None:
                return reason
        return None


class Promise(NamedTuple):
    """The guarantee of an acknowledgement, and what a crash may lose."""

    acknowledged: str
    process_crash: str
    machine_crash: str


def promise(combo: Combo, registry: Registry) -> Promise:
    """Return what the return of a put guarantees under a combination."""
    if registry.flush_policies.get(combo.flush).waits:
        return Promise("on disk", "nothing acknowledged", "nothing acknowledged")
    if registry.writers.get(combo.write).commits_at_once:
        return Promise("in the page cache", "nothing acknowledged", _UNSYNCED)
    return Promise("in the process's memory", _IN_MEMORY, _UNSYNCED)


def combinations(registry: Registry, only: Iterable[tuple[str, str]] = ()) -> list[Combo]:
    """Return every combination, including those with which no store can be opened.

    `only` has (kind, name) pairs; for each kind in it, only the given names are used.
    """
    names = {kind: registry.sets()[kind].names() for kind in KINDS}
    asked: dict[str, list[str]] = {}
    for kind, name in only:
        if name not in names.get(kind, ()):
            offered = ", ".join(names.get(kind, ())) or f"kinds: {', '.join(KINDS)}"
            raise ConfigError(f"there is no {kind} named {name!r}; installed: {offered}")
        asked.setdefault(kind, []).append(name)
    return [Combo(*each) for each in itertools.product(*(asked.get(k, names[k]) for k in KINDS))]


_ANSWER_S = 120
_END_S = 20
_SEED = 20_130_612


@attrs.define
class RunOutcome:
    """The results of one combination: a dictionary of figures per round, and the error of the round that failed."""

    combo: Combo
    rounds: list[dict[str, float]] = attrs.Factory(list)
    failure: str | None = None


def run(
    folder: Path,
    combos: Sequence[Combo],
    plan: MeasurePlan,
    *,
    on_progress: Callable[[RunOutcome], None] = lambda _: None,
) -> list[RunOutcome]:
    """Measure every combination in every round; `on_progress` is called after each.

    Works in a temporary folder inside `folder`, and deletes it in every case.
    """
    outcomes = [RunOutcome(combo) for combo in combos]
    spawner = multiprocessing.get_context("forkserver")
    spawner.set_forkserver_preload(["penstock_tools.matrix.measure"])
    home = Path(tempfile.mkdtemp(prefix="penstock-matrix-", dir=folder))
    try:
        for number in range(plan.rounds):
            order = list(outcomes)
            random.Random(_SEED + number).shuffle(order)
            for outcome in order:
                if outcome.failure is None:
                    _measure(spawner, home / "store", outcome, plan)
                on_progress(outcome)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return outcomes


def _measure(spawner: Any, path: Path, outcome: RunOutcome, plan: MeasurePlan) -> None:
    """Measure one combination once, and add figures or failure to its outcome."""
    figures: dict[str, float] = {}
    try:
        for work in (measure.measure, measure.recover):
            kind, answer = _ask(spawner, work, path, outcome.combo.settings(), plan)
            if kind == FAILED:
                outcome.failure = answer
                return
            figures |= answer
        outcome.rounds.append(figures)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _ask(
    spawner: Any,
    work: Callable[[str, dict[str, Any], MeasurePlan, Connection], None],
    path: Path,
    settings: dict[str, Any],
    plan: MeasurePlan,
) -> Answer:
    """Run `work` in a child process and return its answer; the child has ended by then, killed if necessary."""
    receiver, sender = spawner.Pipe(duplex=False)
    process = spawner.Process(target=work, args=(str(path), settings, plan, sender))
    process.start()
    sender.close()
    answer: Answer | None = None
    is_over = work is measure.recover
    try:
        late: Answer = (FAILED, f"the measuring process did not answer within {_ANSWER_S} s")
        answer = receiver.recv() if receiver.poll(_ANSWER_S) else late
    except EOFError:
        is_over = True
    finally:
        # A measuring process is killed with unsynced bytes; a recovering process may end by itself.
        if is_over:
            process.join(_END_S)
        process.kill()
        process.join()
        receiver.close()
    return answer or (
        FAILED,
        f"the measuring process ended without an answer: {_ending(process.exitcode)}",
    )


def _ending(code: int | None) -> str:
    """Return how a process ended, from its exit code."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


Row = dict[str, Any]
Report = dict[str, Any]

METRICS: dict[str, tuple[str, str, str]] = {
    "put_per_s": ("put", "messages/s", "higher"),
    "put_p50_us": ("put p50", "us", "lower"),
    "put_p99_us": ("put p99", "us", "lower"),
    "put_p999_us": ("put p99.9", "us", "lower"),
    "put_max_us": ("put slowest", "us", "lower"),
    "batch_per_s": ("put_many", "messages/s", "higher"),
    "batch_mib_s": ("put_many, bytes", "MiB/s", "higher"),
    "sync_per_s": ("durable puts, 1 thread", "puts/s", "higher"),
    "sync_bytes": ("written per durable put", "bytes", "lower"),
    "sync_threads_per_s": ("durable puts, many threads", "puts/s", "higher"),
    "synced_mib_s": ("synced bytes", "MiB/s", "higher"),
    "lag_ms": ("dispatch lag", "ms", "lower"),
    "recovery_ms": ("open after SIGKILL", "ms", "lower"),
    "disk_per_byte": ("disk per byte of body", "bytes", "lower"),
    "memory_mib": ("peak memory without mapped files", "MiB", "lower"),
}


def make_report(
    outcomes: Sequence[RunOutcome],
    refused: Sequence[tuple[Combo, str]],
    plan: MeasurePlan,
    registry: Registry,
    *,
    folder: Path,
    seconds: float,
) -> Report:
    """Return the report of a run; see `penstock_tools.matrix`. `refused` are the combinations that conflict."""
    rows = [_row(outcome, registry) for outcome in outcomes]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": machine(folder),
        "plan": attrs.asdict(plan),
        "metrics": {
            name: {"title": title, "unit": unit, "better": better}
            for name, (title, unit, better) in METRICS.items()
        },
        "rows": rows,
        "refused": [
            {"label": combo.label, **combo._asdict(), "reason": reason} for combo, reason in refused
        ],
        "best": best(rows),
    }


def _row(outcome: RunOutcome, registry: Registry) -> Row:
    """Return the report's row for one combination."""
    combo = outcome.combo
    figures = {}
    for name in METRICS:
        # Six digits are more than enough, and keep the page small.
        values = [float(f"{each[name]:.6g}") for each in outcome.rounds if name in each]
        if values:
            figures[name] = {
                "median": median(values), "low": min(values), "high": max(values), "rounds": values,
            }  # fmt: skip
    return {
        "label": combo.label,
        **combo._asdict(),
        **promise(combo, registry)._asdict(),
        "config": combo.toml(),
        "failure": outcome.failure,
        "figures": figures,
    }


def best(rows: Sequence[Row]) -> dict[str, str]:
    """Return the best combination by throughput, by p99, and by durable puts among those that acknowledge on disk.

    A combination that failed in any round is not recommended.
    """
    found = {}
    valid = [row for row in rows if not row["failure"]]
    durable = [row for row in valid if row["acknowledged"] == "on disk"]
    for name, metric, among in (
        ("throughput", "put_per_s", valid),
        ("p99", "put_p99_us", valid),
        ("durability", "sync_threads_per_s", durable),
    ):
        top = best_value(among, metric)
        if top is not None:
            found[name] = next(row["label"] for row in among if value(row, metric) == top)
    return found


def value(row: Row, metric: str) -> float | None:
    """Return the median of a metric in a row; None if it was not measured."""
    figure: dict[str, float] | None = row["figures"].get(metric)
    return None if figure is None else figure["median"]


def best_value(rows: Sequence[Row], metric: str) -> float | None:
    """Return the best median of a metric among the rows that did not fail; None if there is none."""
    medians = [value(row, metric) for row in rows if not row["failure"]]
    pick = max if METRICS[metric][2] == "higher" else min
    return pick((each for each in medians if each is not None), default=None)


def machine(folder: Path) -> dict[str, str]:
    """Return a description of the machine and of the file system of `folder`."""
    kind, device = file_system(folder.resolve())
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "file system": f"{kind} on {device}",
        "python": platform.python_version(),
        "penstock": penstock.__version__,
        **{name: version(name) for name in ("numpy", "crc32c")},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(folder: Path) -> tuple[str, str]:
    """Return type and device of the file system that contains an absolute path."""
    found = ("", "unknown", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, at, kind = line.split()[:3]
        if folder.is_relative_to(at) and len(at) >= len(found[0]):
            found = (at, kind, device)
    return found[1], found[2]
