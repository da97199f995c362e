"""The verb `import`: rows of a file into a store, each once."""  # noqa: N999 - the file has the name of the verb

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click

import penstock
from penstock.cli.output import (
    NOTHING_NEW,
    Bar,
    chosen,
    counted,
    note,
    out_json,
    quiet_option,
    restart_option,
    settings_options,
)
from penstock.cli.root import INTERRUPTED, examples, interrupts_wait
from penstock.errors import MessageError
from penstock.exchange.formats import FORMATS, STANDARD
from penstock.exchange.importing import (
    Hooks,
    ImportOptions,
    ImportSummary,
    import_file,
    import_stream,
)

# So many skipped rows are shown, each with its reason.
_SHOWN = 5


@click.command(
    "import",
    epilog=examples(
        "penstock import data orders.ndjson",
        "cat orders.ndjson | penstock import data - --format ndjson --topic copies",
    ),
)
@click.argument("path", type=click.Path())
@click.argument("source", type=click.Path())
@click.option("--topic", default=None, help="The topic of all messages, in place of the file's.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=NAME",
    help="The column NAME is the field FIELD, for example body=text; may be given more than once.",
)
@click.option(
    "--ignore-unknown", is_flag=True, help="Leave out columns that are not fields of a message."
)
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be stored.")
@click.option(
    "--from-row",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Begin at this row, as an error message gives it.",
)
@restart_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default=None,
    help="The file's format; by default from the file name extension.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@quiet_option
@settings_options
def command(
    path: str,
    source: str,
    columns: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    **options: Any,
) -> int:
    """Store the rows of SOURCE in the store at PATH: a file from `penstock export`, or - for standard input.

    Any file with columns of the same names will do; topic and body are required. After an interruption, the same command
    continues where it stopped, and stores no row twice. It is an error if the rows before that have changed since.
    After a file was stored whole, only rows that were appended to it are stored. Standard input is always loaded from its first row.
    """
    asked = ImportOptions(columns=_columns(columns), **options)
    if source != STANDARD and not Path(source).is_file():
        raise click.UsageError(f"{source} is not a file")
    total = Path(source).stat().st_size if source != STANDARD else None
    shown = _Shown()
    with penstock.open(path, config, **chosen(settings, broker_conf)) as store:
        try:
            with Bar("import", total, "rows", quiet=quiet) as bar:

                def on_progress(done: int, rows: int) -> None:
                    shown.rows = rows
                    bar.set(done, rows)

                hooks = Hooks(on_progress=on_progress, on_skip=shown.skip, guard=interrupts_wait)
                if source == STANDARD:
                    report = import_stream(store, sys.stdin.buffer, STANDARD, asked, hooks)
                else:
                    report = import_file(store, source, asked, hooks)
        except KeyboardInterrupt:
            goes_on = "; the same command continues there" if source != STANDARD else ""
            note(f"interrupted after {counted(shown.rows, 'row')}, all stored{goes_on}")
            return INTERRUPTED
        finally:
            shown.print()
    _print_summary(report, path, as_json=as_json, quiet=quiet)
    return 0


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        field, separator, name = pair.partition("=")
        if not (separator and field and name):
            raise click.UsageError(f"--column takes FIELD=NAME, not {pair!r}")
        found[field] = name
    return found


class _Shown:
    """The rows stored and skipped, for the lines that are printed after the progress bar. Not thread-safe."""

    def __init__(self) -> None:
        self.rows = 0
        self._skipped: list[str] = []
        self._more = 0

    def skip(self, where: str, error: MessageError) -> None:
        """Keep the first reasons."""
        if len(self._skipped) < _SHOWN:
            self._skipped.append(f"skipped {where}: {error}")
        else:
            self._more += 1

    def print(self) -> None:
        """Show them."""
        for text in self._skipped:
            note(text)
        if self._more:
            note(f"skipped {counted(self._more, 'row')} more")


def _print_summary(report: ImportSummary, path: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        facts = attrs.asdict(report)
        out_json(path=path, source=facts.pop("path"), **facts)
        return
    if quiet:
        return
    before = f", after {report.stored_before:,} of an earlier run" if report.stored_before else ""
    note(
        f"stored {counted(report.stored, 'message')} in {path}{before}, skipped {counted(report.skipped, 'row')}"
    )
    if report.stored_before and not report.stored:
        note(NOTHING_NEW)
