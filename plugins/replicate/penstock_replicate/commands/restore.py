"""`penstock restore`: a store from what the replicator `ship` has shipped."""

from typing import TYPE_CHECKING

import click

from penstock.cli.output import (  # fmt: skip
    Bar,
    as_json,
    counted,
    note,
    out,
    quiet_option,
    size_text,
    table,
    time_text,
)
from penstock.cli.root import NO, examples
from penstock.cli.times import END

if TYPE_CHECKING:
    from penstock_replicate.ship.restore_point import Survey
    from penstock_replicate.ship.restoring import RestoreReport

_TIMES_SHOWN = 20


@click.command(
    "restore",
    epilog=examples(
        "penstock restore s3://backups/orders --list",
        "penstock restore s3://backups/orders data --time '2026-11-23 10:00:00Z'",
    ),
)
@click.argument("url")
@click.argument("target", type=click.Path(), required=False)
@click.option("--time", "time_ms", type=END, default=None, help="Only what was stored by then, for example '2026-11-23 10:00:00Z', 1h (ago).")  # fmt: skip
@click.option("--offset", type=click.IntRange(0), default=None, help="Only records that end at this log offset or before it.")  # fmt: skip
@click.option("--generation", type=click.IntRange(0), default=None, help="The number of a manifest, if the newest one cannot be used.")  # fmt: skip
@click.option("--list", "lists", is_flag=True, help="Show what can be restored; restore nothing.")
@click.option(
    "--json", "json_lines", is_flag=True, help="Print what was restored, or can be, as JSON."
)
@quiet_option
def command(
    url: str,
    target: str | None,
    time_ms: int | None,
    offset: int | None,
    generation: int | None,
    lists: bool,
    json_lines: bool,
    quiet: bool,
) -> int:
    """Make a store at TARGET from the archive at URL, a folder or a URL that `replicate.ship.url` named.

    Every object is compared with its digest; queues and index are made anew, and verified. TARGET must not exist, or be empty.
    """
    from penstock_replicate.ship.restoring import list_archive, restore  # noqa: PLC0415 - not for a help text

    if lists:
        if target is not None:
            raise click.UsageError("--list restores nothing: leave TARGET out")
        _show(list_archive(url), json_lines=json_lines)
        return 0
    if target is None:
        raise click.UsageError("name the TARGET, a folder that does not exist or is empty; or give --list")  # fmt: skip
    with Bar("restore", None, "MiB", quiet=quiet) as bar:

        def on_progress(done: int, total: int) -> None:
            bar.total(total)
            bar.set(done, done >> 20)

        report = restore(
            url, target, time=time_ms, offset=offset, generation=generation, on_progress=on_progress,
        )  # fmt: skip
    _print_report(report, json_lines=json_lines, quiet=quiet)
    return NO if report.findings else 0


def _show(found: "Survey", *, json_lines: bool) -> None:
    import attrs  # noqa: PLC0415 - not for a help text

    manifest = found.manifest
    times = [{"generation": name.number, "time_ms": name.time_ms} for name in found.names]
    if json_lines:
        spans = [attrs.asdict(span) for span in found.spans]
        about = {
            "generation": manifest.number, "shipped_ms": manifest.time_ms, "history": manifest.history, "epoch": manifest.epoch,
            "segment_bytes": manifest.segment_bytes, "spans": spans, "generations": times, "notes": found.passed_over,
        }  # fmt: skip
        out(as_json(about))
        return
    for text in found.passed_over:
        note(text)
    out(
        f"history {manifest.history}, epoch {manifest.epoch}; generation {manifest.number}, shipped {time_text(manifest.time_ms)}"
    )
    rows = [
        (span.begin, span.end, _time(span.first_ms), _time(span.last_ms), size_text(span.end - span.begin))
        for span in found.spans
    ]  # fmt: skip
    table("The log can be restored to any time, or log offset, of", ("from offset", "to offset", "from", "to about", "size"), rows)  # fmt: skip
    shown = times[-_TIMES_SHOWN:]
    title = f"Files beside the log are kept as of {counted(len(times), 'generation')}"
    title += f"; the newest {len(shown)}" if len(times) > len(shown) else ""
    table(title, ("generation", "time"), [(each["generation"], time_text(each["time_ms"])) for each in shown])  # fmt: skip


def _time(time_ms: int) -> str:
    return time_text(time_ms) if time_ms else "not known"


def _print_report(report: "RestoreReport", *, json_lines: bool, quiet: bool) -> None:
    import attrs  # noqa: PLC0415 - not for a help text

    if json_lines:
        out(as_json(attrs.asdict(report)))
        return
    for text in report.notes:
        note(text)
    for text in report.findings:
        out(text)
    if not quiet:
        left = report.archive_end - report.log_end
        later = f"; {size_text(left)} of the archive are later" if left > 0 else ""
        side = "none" if report.side_generation is None else f"of generation {report.side_generation}"  # fmt: skip
        note(
            f"restored {size_text(report.bytes)} of log to {report.path}: log offsets {report.log_begin} to {report.log_end}{later}; "
            f"files beside the log: {side}; epoch {report.epoch}"
        )
