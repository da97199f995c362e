"""The verb `export`: messages of a store to a file."""

import sys

import attrs
import click

import penstock
from penstock.store.store import Store
from penstock_tools.cli.output import (
    Bar,
    as_json,
    counted,
    note,
    note_foreign,
    out,
    quiet_option,
    size_text,
    store_argument,
)
from penstock_tools.cli.root import NO, examples
from penstock_tools.cli.times import check_order, since_option, until_option
from penstock_tools.exchange.exporting import (
    ExportSummary,
    Selection,
    export_messages,
    export_stream,
)
from penstock_tools.exchange.text_files import FORMATS, NDJSON, STANDARD


@click.command(
    "export",
    epilog=examples(
        "penstock export data --topic orders --to orders.csv.gz",
        "penstock export data --since 2020-01-01 --tag 'created || paid' --to - --format csv",
    ),
)
@store_argument
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(),
    help="The file: .ndjson, .csv (both also with .gz), .parquet or .arrow; - for standard output.",
)
@click.option(
    "--topic", "topics", multiple=True, help="Only this topic; may be given more than once."
)
@click.option(
    "--queue",
    "queues",
    type=int,
    multiple=True,
    help="Only this queue of each topic; may be given more than once.",
)
@since_option
@until_option
@click.option("--tag", default="*", help="Only messages with these tags, for example 'a || b'.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    help="Only messages with this key; may be given more than once.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="The format; by default from the file name extension.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--json", "json_lines", is_flag=True, help="Print the summary as JSON.")
@quiet_option
def command(
    path: str,
    target: str,
    topics: tuple[str, ...],
    queues: tuple[int, ...],
    since: int | None,
    until: int | None,
    tag: str,
    keys: tuple[str, ...],
    kind: str | None,
    overwrite: bool,
    json_lines: bool,
    quiet: bool,
) -> int:
    """Write messages of the store at PATH to a file, which `penstock import` reads back.

    Without --topic, all topics. The file has every field of each message, in the order in which they were stored. It
    appears under its name when it is complete.
    """
    check_order(since, until)
    selection = Selection(
        topics=topics, queues=queues, since_ms=since, until_ms=until, tag=tag, keys=keys,
    )  # fmt: skip
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        with Bar("export", None, "messages", quiet=quiet or target == STANDARD) as bar:
            if target == STANDARD:
                report = _to_standard_output(store, selection, kind or "", quiet=quiet)
            else:
                report = export_messages(
                    store, target, selection, kind=kind, overwrite=overwrite, on_progress=bar.reach,
                )  # fmt: skip
    _print_summary(report, json_lines=json_lines, quiet=quiet)
    return NO if report.unreadable else 0


def _to_standard_output(
    store: Store, selection: Selection, kind: str, *, quiet: bool
) -> ExportSummary:
    if not kind:
        raise click.UsageError(
            f"--to - needs --format, since it has no name; one of: {', '.join(FORMATS)}"
        )
    if kind != NDJSON and sys.stdout.isatty():
        # Bodies may hold what controls a terminal; in NDJSON it is escaped.
        raise click.UsageError(
            f"{kind} is not shown on a terminal: redirect it to a file, or use ndjson"
        )
    return export_stream(store, sys.stdout.buffer, selection, kind=kind)


def _print_summary(report: ExportSummary, *, json_lines: bool, quiet: bool) -> None:
    missing = []
    if report.unreadable:
        missing.append(
            f"not in it, because corrupt or missing: {counted(report.unreadable, 'message')}; see penstock verify"
        )
    if report.deleted:
        missing.append(f"deleted by retention meanwhile: {counted(report.deleted, 'message')}")
    if json_lines:
        line = as_json(attrs.asdict(report))
        # Standard output has the messages.
        (note if report.path == STANDARD else out)(line)
    elif not quiet:
        note(
            f"exported {counted(report.messages, 'message')} of {counted(len(report.topics), 'topic')} to "
            f"{report.path}, {size_text(report.bytes)}"
        )
    if not json_lines:
        for text in missing:
            note(text)
