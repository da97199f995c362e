"""The verb `read`: shows messages of a topic."""

from collections.abc import Iterator
from itertools import islice

import click

import penstock
from penstock import StoredMessage
from penstock.format.names import QUEUE_MAX
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
from penstock_tools.cli.times import check_order, since_option, until_option


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
    type=click.IntRange(0, QUEUE_MAX),
    default=None,
    help="Read only this queue; by default all queues, in the order stored.",
)
@click.option(
    "--offset", type=click.IntRange(0), default=None, help="The queue offset to begin at."
)
@click.option(
    "--limit",
    type=LIMIT,
    default=20,
    show_default=True,
    help="The maximum number of messages.",
)
@click.option("--tag", default="*", help="Only messages with these tags, for example 'a || b'.")
@click.option("--key", default=None, help="Only messages with this key; penstock find is faster.")
@since_option
@until_option
@json_option
def command(
    path: str,
    topic: str,
    queue: int | None,
    offset: int | None,
    limit: int,
    tag: str,
    key: str | None,
    since: int | None,
    until: int | None,
    as_json: bool,
) -> int:
    """Show messages of TOPIC."""
    check_order(since, until)
    after, before = (None if ms is None else ms / 1000 for ms in (since, until))
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        there = [q for q in store.topics(system=True).get(topic, []) if queue in (None, q)]
        if not there:
            # Raises if the topic exists and the format of its queues is not understood.
            store.max_offset(topic, 0)
        start = None if offset is None else {(topic, q): offset for q in there}
        found: Iterator[StoredMessage] = iter(())
        if there:
            found = store.scan(topic, queue=queue, tag=tag, key=key, since=after, until=before,
                start=start)  # fmt: skip
        count = show_messages(islice(found, limit), json_lines=as_json)
        if key is not None and count == limit:
            # The next one may be far, and only the records tell.
            note(f"there may be more than {limit}: --limit shows them")
        elif key is None and next(found, None) is not None:
            note(f"there are more than {limit}: --limit shows them")
        elif not count:
            why = why_nothing(store, topic, queue, offset)
            note(why or f"no message of topic {topic!r} matches")
    return 0 if count else NO
