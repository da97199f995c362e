"""The verb `tail`: shows the newest messages, and with --follow new ones as they arrive."""

import click

import penstock
from penstock import StoredMessage
from penstock_tools.cli.completion import topics
from penstock_tools.cli.contents import why_nothing
from penstock_tools.cli.output import (
    LIMIT,
    json_option,
    note,
    note_foreign,
    show_messages,
    store_argument,
)
from penstock_tools.cli.root import NO, examples


@click.command(
    "tail",
    epilog=examples(
        "penstock tail data orders --limit 2", "penstock tail data orders --limit 1 --json"
    ),
)
@store_argument
@click.argument("topic", shell_complete=topics)
@click.option(
    "--limit",
    type=LIMIT,
    default=10,
    show_default=True,
    help="How many of the newest messages to show.",
)
@click.option(
    "-f", "--follow", is_flag=True, help="Then show new messages as they are put, until Ctrl-C."
)
@json_option
def command(path: str, topic: str, limit: int, follow: bool, as_json: bool) -> int:
    """Show the newest messages of TOPIC; with -f also new ones as they arrive."""
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        queues = store.topics(system=True).get(topic, [])
        if not queues:
            # Raises if the topic exists and the format of its queues is not understood.
            store.max_offset(topic, 0)
        # What is put from here on is shown by the following scan.
        ends = {(topic, queue): store.max_offset(topic, queue) for queue in queues}
        coming = store.scan(topic, follow=True, start=ends) if follow else ()
        newest: list[StoredMessage] = []
        for queue in queues:
            end = ends[topic, queue]
            start = max(end - limit, store.min_offset(topic, queue))
            found = store.scan(topic, queue=queue, start=start)
            newest.extend(m for m in found if m.queue_offset < end)
        newest = sorted(newest, key=lambda m: m.log_offset)[-limit:]
        count = show_messages(newest, json_lines=as_json, at_once=follow)
        why = None if count else why_nothing(store, topic)
        if why:
            note(f"{why}. Waiting for its first message" if follow else why)
        count += show_messages(coming, json_lines=as_json, at_once=True)
    return 0 if count else NO
