"""The verb `groups`: shows how far each consumer group has read."""

import click

import penstock
from penstock.cli.completion import groups
from penstock.cli.output import (
    json_option,
    note,
    note_foreign,
    out_json,
    store_argument,
    table,
)
from penstock.cli.root import examples


@click.command(
    "groups", epilog=examples("penstock groups data", "penstock groups data --group billing --json")
)
@store_argument
@click.option("--group", "only", default=None, shell_complete=groups, help="Only this group.")
@json_option
def command(path: str, only: str | None, as_json: bool) -> int:
    """List consumer groups: how far each has read, and how many messages it lags."""
    rows = []
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        for (group, topic), queues in sorted(store.groups().items()):
            for queue, offset in sorted(queues.items()) if only in (None, group) else ():
                lag = store.max_offset(topic, queue) - offset
                rows.append((group, topic, queue, offset, lag))
        remarks = store.stats()["offsets_set_aside"]
    names = ("group", "topic", "queue", "offset", "lag")
    if as_json:
        for row in rows:
            out_json(**dict(zip(names, row, strict=True)))
    else:
        table("", names, rows)
    if any(row[-1] < 0 for row in rows):
        note(
            "a negative lag means that the offset is after the end of the queue: messages were lost, or the offsets "
            "are newer than the log. Opening the store for writing sets the offset back to the queue's end"
        )
    for remark in remarks:
        note(f"not used: {remark}")
    return 0
