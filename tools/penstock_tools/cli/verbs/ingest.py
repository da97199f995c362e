"""The verb `ingest`: the rows of a file that knows nothing of messages, whole, into a store."""

from typing import Any

import click

from penstock_tools.cli.loading import loads
from penstock_tools.cli.output import restart_option
from penstock_tools.cli.root import examples
from penstock_tools.exchange.importing import ImportOptions, WholeRows
from penstock_tools.exchange.text_files import FORMATS, LINES


@click.command(
    "ingest",
    epilog=examples(
        "penstock ingest data events.ndjson --topic events --key-field id --tag-field kind",
        "cat access.log | penstock ingest data - --topic access --queues 4 --queue-by line",
    ),
)
@click.option("--topic", default="", help="The topic; with --topic-field, a prefix of the topic.")
@click.option("--topic-field", default=None, help="The field that names the topic.")
@click.option(
    "--key-field",
    "key_fields",
    multiple=True,
    help="A field to use as a message key, or a list of keys; may be given more than once.",
)
@click.option(
    "--tag-field",
    default=None,
    help="The field to use as the tag; FIELD:suffix is the file name extension of a path.",
)
@click.option(
    "--queue-by",
    default=None,
    help="The field whose hash picks the queue; by default the queues take turns.",
)
@click.option(
    "--queues",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    help="Number of queues for --queue-by.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice((LINES, *FORMATS)),
    default=None,
    help="The source's format; by default from the file name extension, else lines.",
)
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be stored.")
@restart_option
@loads("ingest")
def command(kind: str | None, skip_bad: bool, restart: bool, **plan: Any) -> ImportOptions:
    """Put every row of SOURCE (a file, or - for standard input) into the store at PATH.

    The body of a message is the unchanged line; for CSV and Parquet it is the row as JSON. Ctrl-C stops
    cleanly; rows stored before it stay stored.

    If a file was not stored to its end, because of Ctrl-C, a full disk or a crash, the same command continues
    where it stopped, and stores no row twice. It is an error if the rows before that have changed since.
    If a file was stored whole, only appended rows are stored. Standard input is loaded from its first row.
    """
    if not plan["topic"] and not plan["topic_field"]:
        raise click.UsageError("give --topic, --topic-field or both")
    return ImportOptions(whole=WholeRows(**plan), kind=kind, skip_bad=skip_bad, restart=restart)
