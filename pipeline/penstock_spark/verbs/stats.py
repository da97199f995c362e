"""The verb `penstock spark stats`."""

from typing import Any

import click

from penstock.cli.output import json_option, note, out_json, quiet_option, size_text, table
from penstock.cli.root import examples
from penstock_spark.cli import bar, session, session_options, show_summary

_SHOWN = 20


@click.command(
    "stats",
    epilog=examples(
        "penstock spark stats data", "penstock spark stats data --plots pictures --top 5 --json"
    ),
)
@click.argument("paths", nargs=-1, required=True)
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="How many keys.")
@click.option(
    "--by", type=click.Choice(["stored", "born"]), default="stored", show_default=True,
    help="Which time counts.",
)  # fmt: skip
@click.option("--plots", metavar="FOLDER", help="A new folder for plots; needs matplotlib.")
@session_options
@json_option
@quiet_option
def command(
    paths: tuple[str, ...],
    topics: tuple[str, ...],
    top: int,
    by: str,
    plots: str | None,
    master: str | None,
    remote: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Count and measure messages by topic, tag, key and hour.

    PATHS are stores, globs of them, or datasets. Sizes are those of bodies; times are in UTC.
    """
    from penstock_spark.jobs import stats  # noqa: PLC0415 - pyarrow is an extra

    with session("stats", master, remote) as spark, bar("stats", quiet=quiet) as on_progress:
        done = stats.run(
            spark, paths, topics=topics, top=top, by=by, plots=plots, on_progress=on_progress
        )
    if as_json:
        for kind in ("topics", "tags", "keys", "hours"):
            for row in getattr(done, kind):
                out_json(kind=kind.removesuffix("s"), **row)
        out_json(kind="summary", **done.summary(), plots=done.plots)
        return 0
    for title, rows in (
        ("Topics", done.topics), ("Tags", done.tags), ("Keys", done.keys),
        ("Hours, the newest", done.hours[-_SHOWN:]),
    ):  # fmt: skip
        _show(title, rows)
    show_summary("In all", {**done.summary(), "bytes": size_text(done.total["bytes"])}, quiet=quiet)
    for path in done.plots:
        note(path)
    return 0


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    shown = [
        (
            row["name"], row["messages"], size_text(row["bytes"]), f"{row['per_second']:,.2f}/s",
            row["min"], row["mean"], row["p50"], row["p99"], row["max"],
        )
        for row in rows[:_SHOWN]
    ]  # fmt: skip
    more = f", {_SHOWN} of {len(rows)}" if len(rows) > _SHOWN else ""
    names = ("name", "messages", "bytes", "rate", "min", "mean", "p50", "p99", "max")
    if shown:
        table(title + more, names, shown)
