"""One run as JSON: the figures, the machine, and the outcome for the goals."""

import datetime
import json
import statistics
from pathlib import Path
from typing import Any

from bench import machine
from bench.goals import Outcome
from bench.measure import Bench

Result = dict[str, Any]


def of(bench: Bench, outcomes: list[Outcome]) -> Result:
    """Return a run's result."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine.words(),
        "commit": machine.commit(),
        "before": bench.commit,
        "versions": machine.versions(),
        "full": bench.full,
        "rounds": bench.rounds,
        "missing": bench.missing,
        "goals": [plain(outcome) for outcome in outcomes],
        "units": bench.units,
        "figures": bench.figures,
        "latencies": bench.latencies,
    }


def plain(outcome: Outcome) -> Result:
    """Return one goal's outcome as plain values."""
    goal = outcome.goal
    return {
        "work": goal.work, "against": goal.against, "least": goal.least,
        "is_limit": goal.other is None, "beside": goal.beside, "median": outcome.median,
        "low": outcome.low, "high": outcome.high, "must": goal.must,
        "bare": outcome.bare, "device_bytes": outcome.device_bytes, "verdict": outcome.verdict, "why": outcome.why,
    }  # fmt: skip


def load(path: Path) -> Result:
    """Read a run."""
    result: Result = json.loads(path.read_text())
    return result


def save(result: Result, path: Path) -> None:
    """Write a run: figures with four digits, so that the file stays small."""
    rounded = json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.4g}"))
    path.write_text(json.dumps(rounded, indent=1) + "\n")


def median(result: Result, work: str, engine: str) -> float | None:
    """Return the median of a figure, or None."""
    values = result["figures"].get(work, {}).get(engine)
    return statistics.median(values) if values else None
