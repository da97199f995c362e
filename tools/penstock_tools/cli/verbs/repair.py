"""The verb `repair`: shows the repairs a store needs, and with --apply performs them."""

import click

import penstock
from penstock.integrity.verification import Tally
from penstock_tools.cli.output import (
    Bar,
    chosen,
    json_option,
    note,
    out_finding,
    out_json,
    quiet_option,
    settings_options,
    table,
)
from penstock_tools.cli.root import NO, examples
from penstock_tools.repairs.repair import RepairReport


@click.command(
    "repair",
    epilog=examples("penstock repair data", "penstock repair data --apply --json"),
)
@click.argument("path", type=click.Path(exists=True))
@click.option(
    "--apply", "apply", is_flag=True, help="Perform the repairs; without it, nothing is changed."
)
@click.option(
    "--cut",
    is_flag=True,
    help="Cut the log at the first corruption; readers lose all records after it, and the bytes are saved.",
)
@click.option(
    "--quarantine",
    is_flag=True,
    help="Note corrupt bytes of the log, so that the store opens for writing with all other messages.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Accept sealed segments that differ from their digests; their digests are replaced.",
)
@settings_options
@json_option
@quiet_option
def command(
    path: str,
    apply: bool,
    cut: bool,
    quarantine: bool,
    accept: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Show the repairs a store needs: which files, which bytes, how many messages. With --apply, perform them.

    Rebuilds queues and index from the log, rewrites the checkpoint and the progress file, restores single
    flipped bits in sealed segments, and cuts off a torn tail. Other corruption in the log stays unless --quarantine
    or --cut is given: the former keeps all other messages. Removed and overwritten bytes are saved in penstock/saved.
    Exit code 1 if corruption remains, or if repairs are needed and --apply was not given.
    """
    given = chosen(settings, broker_conf)
    with Bar("repair", None, "records", quiet=quiet or as_json) as bar:

        def on_progress(tally: Tally) -> None:
            bar.total(tally.bytes_total)
            bar.set(tally.bytes_seen, tally.records)

        report = penstock.repair(
            path, config, apply=apply, cut=cut, quarantine=quarantine, accept=accept,
            on_progress=on_progress, **given,
        )  # fmt: skip
    if as_json:
        _print_json(report)
    else:
        _show(report, quiet=quiet)
    return NO if report.standing or (report.steps and not report.applied) else 0


def _print_json(report: RepairReport) -> None:
    """Print the steps, the remaining findings and a summary as lines of JSON."""
    for step in report.steps:
        out_json(
            kind="step", action=step.action, path=str(step.path), position=step.position,
            stop=step.stop, messages=step.messages, text=step.text, applied=report.applied,
        )  # fmt: skip
    for finding in report.standing:
        out_json(kind="standing", **finding._asdict())
    saved = str(report.saved_to) if report.saved_to else None
    out_json(
        kind="summary", steps=len(report.steps), standing=len(report.standing),
        applied=report.applied, saved_to=saved,
    )  # fmt: skip


def _show(report: RepairReport, *, quiet: bool) -> None:
    """Print the steps as a table, then the remaining findings and a hint."""
    if report.steps:
        rows = []
        for step in report.steps:
            where = f"{step.position} to {step.stop}" if step.position >= 0 else ""
            rows.append((step.action, step.path, where, step.messages, step.text))
        title = "What was done" if report.applied else "What would be done"
        table(title, ("step", "file", "bytes", "messages", "what"), rows)
    for finding in report.standing:
        out_finding(finding, "not repaired")
    if quiet:
        return
    if report.saved_to is not None:
        note(f"removed and overwritten bytes are saved in {report.saved_to}")
    if report.steps and not report.applied:
        note("nothing was changed; run it again with --apply to perform the repairs")
    if not report.steps and not report.standing:
        note("the store needs no repair")
