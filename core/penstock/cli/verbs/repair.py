"""The verb `repair`: says what would put a store right, and with --apply does it."""

import click

import penstock
from penstock.cli.output import (
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
from penstock.cli.root import NO, examples
from penstock.integrity.verification import Tally
from penstock.repairs.repair import RepairReport


@click.command(
    "repair",
    epilog=examples("penstock repair data", "penstock repair data --apply --json"),
)
@click.argument("path", type=click.Path(exists=True))
@click.option("--apply", "apply", is_flag=True, help="Do it; without it nothing is changed.")
@click.option(
    "--cut",
    is_flag=True,
    help="Cut the log at the first damage; all behind it is lost to readers, and kept aside.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Take sealed segments that differ from their digests as they are.",
)
@settings_options
@json_option
@quiet_option
def command(
    path: str,
    apply: bool,
    cut: bool,
    accept: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say what would put a store right: which files, which bytes, how many messages. With --apply, do it.

    Makes queues and index anew from the log, writes checkpoint and marks, turns back single bits that
    flipped in sealed segments, cuts a torn tail. Damage in the log is left as it is, unless --cut is
    given. What is removed or overwritten is kept in penstock/saved. Exit code 1 if damage is left, or
    if there is something to do and --apply was not given.
    """
    given = chosen(settings, broker_conf)
    with Bar("repair", None, "records", quiet=quiet or as_json) as bar:

        def told(tally: Tally) -> None:
            bar.set(tally.bytes_seen, tally.records)

        report = penstock.repair(
            path, config, apply=apply, cut=cut, accept=accept, told=told, **given
        )
    if as_json:
        _tell_json(report)
    else:
        _show(report, quiet=quiet)
    return NO if report.standing or (report.steps and not report.applied) else 0


def _tell_json(report: RepairReport) -> None:
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
    if report.steps:
        rows = []
        for step in report.steps:
            where = f"{step.position} to {step.stop}" if step.position >= 0 else ""
            rows.append((step.action, step.path, where, step.messages, step.text))
        title = "What was done" if report.applied else "What would be done"
        table(title, ("step", "file", "bytes", "messages", "what"), rows)
    for finding in report.standing:
        out_finding(finding, "left as it is")
    if quiet:
        return
    if report.saved_to is not None:
        note(f"what was removed or overwritten is in {report.saved_to}")
    if report.steps and not report.applied:
        note("nothing was changed; --apply does it")
    if not report.steps and not report.standing:
        note("nothing is wrong")
