"""The verb `import`: rows of a file into a store, each once."""  # noqa: N999 - the file has the name of the verb

from collections.abc import Sequence
from typing import Any

import click

from penstock_tools.cli.loading import loads
from penstock_tools.cli.output import restart_option
from penstock_tools.cli.root import examples
from penstock_tools.exchange.importing import ImportOptions
from penstock_tools.exchange.text_files import FORMATS


@click.command(
    "import",
    epilog=examples(
        "penstock import data orders.ndjson",
        "cat orders.ndjson | penstock import data - --format ndjson --topic copies",
    ),
)
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
@loads("import")
def command(columns: tuple[str, ...], **options: Any) -> ImportOptions:
    """Store the rows of SOURCE in the store at PATH: a file from `penstock export`, or - for standard input.

    Any file with columns of the same names will do; topic and body are required. After an interruption, the same
    command continues where it stopped, and stores no row twice. It is an error if the rows before that have changed
    since. If a file was stored whole, only appended rows are stored. Standard input is loaded from its first row.
    """
    return ImportOptions(columns=_columns(columns), **options)


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        field, separator, name = pair.partition("=")
        if not (separator and field and name):
            raise click.UsageError(f"--column takes FIELD=NAME, not {pair!r}")
        found[field] = name
    return found
