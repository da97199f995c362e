"""The verb `read`: shows messages of a topic."""

import itertools

import click

import penstock
from penstock.cli.completion import topics
from penstock.cli.output import json_option, note, note_foreign, show_messages, store_argument
from penstock.cli.root import NO, examples


@click.command(
    "read",
    epilog=examples(
        "penstock read data orders",
        "penstock read data orders --queue 0 --offset 2 --limit 5 --tag 'created || paid' --json",
    ),
)
@store_argument
@click.argument("topic", shell_complete=topics)
@click.option(
    "--queue",
    type=int,
    default=None,
    help="Read only this queue; by default all queues, in the order stored.",
)
@click.option("--offset", type=int, default=None, help="The queue offset to begin at.")
@click.option("--limit", default=20, show_default=True, help="The maximum number of messages.")
@click.option("--tag", default="*", help="Only messages with these tags, for example 'a || b'.")
@json_option
def command(
    path: str,
    topic: str,
    queue: int | None,
    offset: int | None,
    limit: int,
    tag: str,
    as_json: bool,
) -> int:
    """Show messages of TOPIC."""
    from penstock.read.filters import TagFilter  # noqa: PLC0415 - with the rest of the reader

    wanted = TagFilter(tag)
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        found = (m for m in store.scan(topic, queue, start=offset) if wanted.matches(m))
        count = show_messages(itertools.islice(found, limit), json_lines=as_json)
        if not count:
            note(
                f"no messages of topic {topic!r} match; topics in the store: {', '.join(store.topics()) or 'none'}"
            )
    return 0 if count else NO
