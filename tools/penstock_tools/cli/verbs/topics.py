"""The verb `topics`: lists topics with their queues and message counts."""

import click

import penstock
from penstock.format.names import is_hidden
from penstock_tools.cli.output import (
    hide_system,
    json_option,
    note_foreign,
    out_json,
    store_argument,
    system_option,
    table,
    topic_rows,
)
from penstock_tools.cli.root import examples


@click.command("topics", epilog=examples("penstock topics data", "penstock topics data --json"))
@store_argument
@system_option
@json_option
def command(path: str, system: bool, as_json: bool) -> int:
    """List topics with their queues and message counts."""
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        rows = hide_system(topic_rows(store), lambda row: is_hidden(row["topic"]), shown=system)
    if as_json:
        for row in rows:
            out_json(**row)
    else:
        table(
            "",
            ("topic", "queues with messages", "messages"),
            [(r["topic"], r["queues"], r["messages"]) for r in rows],
        )
    return 0
