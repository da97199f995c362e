"""The verb `matrix`: measures every combination of strategies on the user's own disk."""

import os
import tempfile
import time
from pathlib import Path

import click

from penstock.plugins.registry import load_registry
from penstock_tools.cli.output import Bar, json_option, note, out_json, table
from penstock_tools.cli.root import NO, blocked_plugins, examples
from penstock_tools.matrix.measure import MeasurePlan, open_store
from penstock_tools.matrix.page import number, ready, render
from penstock_tools.matrix.report import (
    Combo,
    Report,
    Row,
    RunOutcome,
    best_value,
    combinations,
    make_report,
    run,
    value,
)

# Metric and a heading short enough for a terminal.
_SHOWN = {
    "put_per_s": "put/s", "put_p99_us": "p99 us", "batch_per_s": "batched/s",
    "sync_per_s": "durable/s", "sync_bytes": "bytes/durable", "synced_mib_s": "synced MiB/s",
    "recovery_ms": "recovery ms",
}  # fmt: skip
_ONE = "--only write=mmap --only alloc=on-demand --only flush=async"


@click.command(
    "matrix",
    epilog=examples(
        f"penstock matrix {_ONE} --quick --seconds 0.02 --html ''",
        f"penstock matrix {_ONE} --quick --seconds 0.02 --html matrix.html --json",
    ),
)
@click.argument("path", type=click.Path(exists=True, file_okay=False), default=".")
@click.option(
    "--body", type=click.IntRange(1), default=1024, show_default=True,
    help="Size of a message body in bytes.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, 256), default=1, show_default=True,
    help="Number of threads that put concurrently.",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1), default=1000, show_default=True,
    help="Number of messages in a batch.",
)  # fmt: skip
@click.option(
    "--only", multiple=True, metavar="KIND=NAME",
    help="Measure only these: write=mmap, alloc=..., flush=...; may be given more than once.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Two short rounds: less than three minutes in total.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="How often each combination is measured.  [5, quick: 2]",
)
@click.option(
    "--seconds", type=click.FloatRange(0.001),
    help="How long each metric is measured.  [0.3, quick: 0.05]",
)  # fmt: skip
@click.option(
    "--html", default="penstock-matrix.html", show_default=True,
    help="The HTML page to write; '' writes none.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@json_option
def command(
    path: str,
    body: int,
    threads: int,
    batch: int,
    only: tuple[str, ...],
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    html: str,
    quiet: bool,
    as_json: bool,
) -> int:
    """Measure every combination of writer, allocator and flush policy on the disk of PATH.

    Works in a temporary folder below PATH and deletes it. Prints a table, with --json the whole
    report, and writes an HTML page with plots, a heat map, and the configuration of the best combination.
    """
    if html:
        _check_page(Path(html))
    plan = MeasurePlan(
        body=body, threads=threads, batch=batch,
        sync_threads=4 if quick else 16,
        seconds=seconds or (0.05 if quick else 0.3),
        rounds=rounds or (2 if quick else 5),
        # A segment must hold more than one body.
        segment_bytes=max((4 if quick else 16) << 20, 4 * (body + 4096) // 4096 * 4096),
    )  # fmt: skip
    report = _measure_all(Path(path), [_pair(text) for text in only], plan, quiet=quiet)
    # Printed before the page is written, which may fail.
    _print_report(report, json_wanted=as_json)
    if html:
        Path(html).write_text(render(report))
        note(f"wrote the page with plots and configurations: {html}")
    return NO if any(row["failure"] for row in report["rows"]) else 0


def _check_page(page: Path) -> None:
    """Raise before the measurement if the page could not be written after it."""
    ready()
    there = page if page.exists() else page.parent
    if page.is_dir() or not os.access(there, os.W_OK):
        raise click.UsageError(
            f"--html {page}: this file cannot be written; nothing was measured. Give another path, or '' for no page"
        )


def _pair(text: str) -> tuple[str, str]:
    kind, separator, name = text.partition("=")
    if not separator:
        raise click.UsageError(f"--only takes KIND=NAME, not {text!r}")
    return kind.strip(), name.strip()


def _measure_all(
    folder: Path, only: list[tuple[str, str]], plan: MeasurePlan, *, quiet: bool
) -> Report:
    """Return the report on all selected combinations."""
    registry = load_registry(blocked_plugins())
    combos = combinations(registry, only)
    reasons = [(combo, combo.conflict(registry)) for combo in combos]
    refused = [(combo, reason) for combo, reason in reasons if reason is not None]
    allowed = [combo for combo, reason in reasons if reason is None]
    began = time.monotonic()
    outcomes = _run(folder, allowed, plan, quiet=quiet)
    seconds = time.monotonic() - began
    return make_report(outcomes, refused, plan, registry, folder=folder, seconds=seconds)


def _run(folder: Path, combos: list[Combo], plan: MeasurePlan, *, quiet: bool) -> list[RunOutcome]:
    """Measure the combinations with a progress bar, and return the outcomes."""
    # An unwritable disk is reported here once, instead of by every child process.
    with tempfile.TemporaryDirectory(prefix="penstock-matrix-", dir=folder) as probe:
        open_store(str(Path(probe) / "s"), {}, plan).close()
    total = len(combos) * plan.rounds
    with Bar("matrix", total, "runs", quiet=quiet) as bar:
        done = 0

        def on_progress(_: RunOutcome) -> None:
            nonlocal done
            done += 1
            bar.set(done, done)

        return run(folder, combos, plan, on_progress=on_progress)


def _print_report(report: Report, *, json_wanted: bool) -> None:
    """Print the report, as JSON if requested, otherwise as a table with notes."""
    if json_wanted:
        out_json(**report)
        return
    _show(report)
    note("* the best value of its column; ack: where the bytes of a put are when it returns")
    for name, label in report["best"].items():
        note(f"best by {name}: {label}")
    for row in report["rows"]:
        if row["failure"]:
            note(f"failed: {row['label']}: {row['failure']}")
    for refused in report["refused"]:
        note(f"refused: {refused['label']}: {refused['reason']}")


def _show(report: Report) -> None:
    """Show the table, the fastest combination first; the best value of a column has a star."""
    rows = sorted(report["rows"], key=lambda row: -(value(row, "put_per_s") or 0))
    tops = {name: best_value(rows, name) for name in _SHOWN}
    table(
        "",
        ("combination", "ack", *_SHOWN.values()),
        [
            (
                row["label"],
                "failed" if row["failure"] else row["acknowledged"].rpartition(" ")[2],
                *(_cell(row, name, tops[name]) for name in _SHOWN),
            )
            for row in rows
        ],
    )


def _cell(row: Row, metric: str, top: float | None) -> str:
    found = value(row, metric)
    if found is None:
        return f"{'-' if row['failure'] else 'n/a':>9}"
    return f"{number(found):>9} *" if found == top else f"{number(found):>9}"
