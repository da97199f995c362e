"""The verb `find`: finds messages by key and time."""

import click

import penstock
from penstock.contracts import is_light
from penstock.format.names import is_waiting
from penstock.message import StoredMessage
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
    "find",
    epilog=examples(
        "penstock find data --key A-17",
        "penstock find data orders --since 1h --until '2100-01-01 10:00+01:00' --limit 3 --json",
    ),
)
@store_argument
@click.argument("topic", required=False, shell_complete=topics)
@click.option(
    "--key", default=None, help="The message key; without it, messages are selected by time only."
)
@since_option
@until_option
@click.option(
    "--limit",
    type=LIMIT,
    default=64,
    show_default=True,
    help="The maximum number of messages: with --key the newest, else the first.",
)
@json_option
def command(
    path: str,
    topic: str | None,
    key: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """Find messages by key, by time, or both; of TOPIC, or of all topics."""
    if key is None and since is None and until is None:
        raise click.UsageError("give --key, --since or --until")
    check_order(since, until)
    after, before = (None if ms is None else ms / 1000 for ms in (since, until))
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        # Of all topics, those of messages that wait, and of second names of messages, are left out, as by `export`.
        there = [
            name for name in store.topics(system=True)
            if topic == name or (topic is None and not is_waiting(name) and not is_light(name))
        ]  # fmt: skip
        found: list[StoredMessage] = []
        if topic is not None and not there:
            # Raises if the topic exists and the format of its queues is not understood.
            store.max_offset(topic, 0)
        elif key is not None:
            found = store.find(key, topic, since=after, until=before, limit=limit + 1)
        else:
            found = [*store.scan(there, since=after, until=before, limit=limit + 1)]
        is_cut = len(found) > limit
        count = show_messages(
            found[-limit:] if key is not None else found[:limit], json_lines=as_json
        )
        if is_cut:
            note(f"there are more than {limit}: --limit shows them")
        elif not count:
            why = why_nothing(store, topic) if topic is not None else None
            note(why or f"no message{f' of topic {topic!r}' if topic else ''} matches")
    return 0 if count else NO
