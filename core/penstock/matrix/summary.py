"""Makes a report from the rounds: medians with their spread, the best combinations, the effect of each choice."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import attrs

import penstock
from penstock.matrix.combos import KINDS, Combo, promise
from penstock.matrix.measure import MeasurePlan
from penstock.matrix.run import RunOutcome
from penstock.plugins.registry import Registry

Row = dict[str, Any]
Report = dict[str, Any]

METRICS: dict[str, tuple[str, str, str]] = {
    "put_per_s": ("put", "messages/s", "higher"),
    "put_mib_s": ("put, bytes", "MiB/s", "higher"),
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
    "sync_ms_per_mib": ("a sync of 1 MiB", "ms", "lower"),
    "lag_ms": ("dispatch lag", "ms", "lower"),
    "recovery_ms": ("open after SIGKILL", "ms", "lower"),
    "recovery_own_ms": ("recovery part of it", "ms", "lower"),
    "disk_per_byte": ("disk per byte of body", "bytes", "lower"),
    "memory_mib": ("peak memory without mapped files", "MiB", "lower"),
}
_BASE = {"write": "mmap", "alloc": "on-demand", "flush": "async"}
# The effects to report: kind, metric, and the (kind, name) pairs that restrict the rows.
_EFFECTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("write", "sync_per_s", (("flush", "sync"),)),
    ("write", "sync_threads_per_s", (("flush", "sync"),)),
    ("write", "sync_bytes", (("flush", "sync"),)),
    ("write", "put_per_s", (("flush", "async"),)),
    ("write", "put_p99_us", (("flush", "async"),)),
    ("alloc", "put_p99_us", (("flush", "async"),)),
    ("alloc", "put_p999_us", (("flush", "async"),)),
    ("alloc", "put_max_us", (("flush", "async"),)),
    ("alloc", "synced_mib_s", ()),
    ("alloc", "sync_bytes", (("flush", "sync"),)),
    ("alloc", "sync_ms_per_mib", ()),
    ("flush", "put_per_s", ()),
)


def make_report(
    outcomes: Sequence[RunOutcome],
    refused: Sequence[tuple[Combo, str]],
    plan: MeasurePlan,
    registry: Registry,
    *,
    folder: Path,
    seconds: float,
    settings: Mapping[str, Any] | None = None,
) -> Report:
    """Return the report of a run; see `penstock.matrix`.

    `refused` are the combinations that were not tried; `settings` are the settings of all combinations.
    """
    rows = [_row(outcome, registry, settings or {}) for outcome in outcomes if not outcome.refusal]
    tried = [(each.combo, each.refusal) for each in outcomes if each.refusal]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": machine(folder),
        "plan": attrs.asdict(plan),
        "settings": dict(settings or {}),
        "metrics": {
            name: {"title": title, "unit": unit, "better": better}
            for name, (title, unit, better) in METRICS.items()
        },
        "rows": rows,
        "refused": [
            {"label": combo.label, **combo._asdict(), "reason": reason}
            for combo, reason in (*refused, *tried)
        ],
        "best": best(rows),
        "effects": list(effects(rows)),
    }


def _row(outcome: RunOutcome, registry: Registry, settings: Mapping[str, Any]) -> Row:
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
        "config": combo.toml(settings),
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
        measured = [row for row in among if metric in row["figures"]]
        if measured:
            sign = 1 if METRICS[metric][2] == "higher" else -1
            top = max(measured, key=lambda row: sign * row["figures"][metric]["median"])
            found[name] = top["label"]
    return found


def effects(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the effect of each choice, over pairs of rows that differ in nothing else."""
    for kind, metric, where in _EFFECTS:
        inside = [row for row in rows if all(row[k] == name for k, name in where)]
        for name in sorted({row[kind] for row in inside} - {_BASE[kind]}):
            ratios = list(_ratios(inside, kind, name, metric))
            if ratios:
                yield {
                    "kind": kind, "name": name, "against": _BASE[kind], "metric": metric,
                    "where": " ".join(name for _, name in where), "median": median(ratios),
                    "low": min(ratios), "high": max(ratios), "pairs": len(ratios),
                }  # fmt: skip


def _ratios(rows: Sequence[Row], kind: str, name: str, metric: str) -> Iterator[float]:
    others = [each for each in KINDS if each != kind]
    bases = {tuple(row[each] for each in others): row for row in rows if row[kind] == _BASE[kind]}
    for row in rows:
        base = bases.get(tuple(row[each] for each in others))
        if row[kind] == name and base is not None:
            ours, theirs = row["figures"].get(metric), base["figures"].get(metric)
            if ours and theirs and theirs["median"]:
                yield ours["median"] / theirs["median"]


def machine(folder: Path) -> dict[str, str]:
    """Return a description of the machine and of the disk of `folder`."""
    kind, device = file_system(folder.resolve())
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "file system": f"{kind} on {device}",
        "disk": _disk(folder),
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


def _disk(folder: Path) -> str:
    """Return the disk of a folder: name, model, size, and the reported type of its write cache."""
    number = folder.stat().st_dev
    part = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    disk = next((at for at in (part, part.parent) if (at / "queue").is_dir()), None)
    if disk is None:
        return "unknown"
    size = int(_line(disk / "size") or 0) * 512 / (1 << 30)
    facts = [" ".join((disk.name, _line(disk / "device" / "model"))).strip(), f"{size:.0f} GiB"]
    cache = _line(disk / "queue" / "write_cache")
    return ", ".join(facts + ([f"write cache: {cache}"] if cache else []))


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
