"""The verb matrix: every combination of strategies, measured on the user's own disk."""

import tempfile
import time
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import Bar, chosen, json_option, note, out_json, table
from penstock.cli.root import NO, examples
from penstock.matrix.combos import Combo, combinations
from penstock.matrix.measure import Plan
from penstock.matrix.page import number, render
from penstock.matrix.run import Outcome, run
from penstock.matrix.summary import METRICS, Report, make_report
from penstock.registry import load_registry

# Metric and a heading short enough for a terminal.
_SHOWN = {
    "put_per_s": "put/s", "put_p99_us": "p99 us", "batch_per_s": "batched/s",
    "sync_per_s": "durable/s", "synced_mib_s": "synced MiB/s", "recovery_ms": "recovery ms",
}  # fmt: skip
_ONE = "--only write=mmap --only alloc=on-demand --only flush=async"


@click.command(
    "matrix",
    epilog=examples(
        f"penstock matrix {_ONE} --quick --seconds 0.02 --html ''",
        f"penstock matrix {_ONE} --only feed=direct --quick --seconds 0.02 --html matrix.html --json",
    ),
)
@click.argument("path", type=click.Path(exists=True, file_okay=False), default=".")
@click.option("--body", default=1024, show_default=True, help="Bytes in a message's body.")
@click.option("--threads", default=1, show_default=True, help="How many threads put at once.")
@click.option("--batch", default=1000, show_default=True, help="Messages in a batch.")
@click.option(
    "--only", multiple=True, metavar="KIND=NAME",
    help="Only these: write=mmap, alloc=..., flush=..., feed=...; may be given several times.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Two short rounds: under three minutes for all.")
@click.option(
    "--rounds", type=click.IntRange(1), help="How often each combination comes.  [5, quick: 2]"
)
@click.option("--seconds", type=float, help="How long each metric runs.  [0.3, quick: 0.05]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting for all, as index.use=...",
)
@click.option(
    "--html",
    default="penstock-matrix.html",
    show_default=True,
    help="The page to write; '' for none.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
def matrix_command(
    path: str,
    body: int,
    threads: int,
    batch: int,
    only: tuple[str, ...],
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    settings: tuple[str, ...],
    html: str,
    quiet: bool,
    as_json: bool,
) -> int:
    """Measure every combination of writer, allocator, flush policy and feed on the disk of PATH.

    Works in a folder of its own below PATH and removes it. The result is a table, with --json the
    whole report, and one page with plots, a heat map, and the configuration to paste for the best.
    """
    plan = Plan(
        body=body, threads=threads, batch=batch,
        sync_threads=4 if quick else 16,
        seconds=seconds or (0.05 if quick else 0.3),
        rounds=rounds or (2 if quick else 5),
        segment_bytes=(4 if quick else 16) << 20,
    )  # fmt: skip
    registry = load_registry()
    combos = combinations(registry, [_pair(text) for text in only])
    reasons = [(combo, combo.conflict(registry)) for combo in combos]
    refused = [(combo, reason) for combo, reason in reasons if reason is not None]
    allowed = [combo for combo, reason in reasons if reason is None]
    began = time.monotonic()
    outcomes = _run(Path(path), allowed, plan, settings, quiet=quiet or as_json)
    report = make_report(
        outcomes, refused, plan, registry, folder=Path(path), seconds=time.monotonic() - began
    )
    if html:
        Path(html).write_text(render(report))
    _tell(report, html, json_wanted=as_json)
    return NO if any(row["failure"] for row in report["rows"]) else 0


def _pair(text: str) -> tuple[str, str]:
    kind, separator, name = text.partition("=")
    if not separator:
        raise click.UsageError(f"--only takes KIND=NAME, not {text!r}")
    return kind.strip(), name.strip()


def _run(
    folder: Path, combos: list[Combo], plan: Plan, settings: tuple[str, ...], *, quiet: bool
) -> list[Outcome]:
    given: dict[str, Any] = chosen(settings, None)
    # Said here, once, rather than by every child: a setting that is wrong, a disk that cannot be written.
    with tempfile.TemporaryDirectory(prefix="penstock-matrix-", dir=folder) as probe:
        _probe(Path(probe) / "s", given, plan)
    total = len(combos) * plan.rounds
    with Bar("matrix", total, "runs", quiet=quiet) as bar:
        done = 0

        def told(_: Outcome) -> None:
            nonlocal done
            done += 1
            bar.set(done, done)

        return run(folder, combos, plan, settings=given, told=told)


def _probe(path: Path, settings: dict[str, Any], plan: Plan) -> None:
    from penstock.matrix.measure import open_store  # noqa: PLC0415 - beside what it is for

    open_store(str(path), settings, plan).close()


def _tell(report: Report, html: str, *, json_wanted: bool) -> None:
    if json_wanted:
        out_json(**report)
        return
    rows = []
    tops = {name: _best(report, name) for name in _SHOWN}
    for row in sorted(report["rows"], key=lambda row: -_median(row, "put_per_s")):
        shown = [
            number(_median(row, name)) + (" *" if _median(row, name) == tops[name] else "")
            for name in _SHOWN
        ]
        answered = row["acknowledged"].rpartition(" ")[2]
        rows.append((row["label"], row["failure"] or answered, *shown))
    table("", ("combination", "answer", *_SHOWN.values()), rows)
    note("* the best of its column; answer: where a put's bytes are when it returns")
    for name, label in report["best"].items():
        note(f"best by {name}: {label}")
    for refused in report["refused"]:
        note(f"refused: {refused['label']}: {refused['reason']}")
    if html:
        note(f"the page with plots and configurations: {html}")


def _median(row: dict[str, Any], metric: str) -> float:
    return float(row["figures"].get(metric, {"median": 0.0})["median"])


def _best(report: Report, metric: str) -> float:
    values = [_median(row, metric) for row in report["rows"] if metric in row["figures"]]
    if not values:
        return 0.0
    return max(values) if METRICS[metric][2] == "higher" else min(values)
