"""The verb `find`: finds messages by key and time."""

import itertools

import click

import penstock
from penstock.cli.completion import topics
from penstock.cli.contents import why_nothing
from penstock.cli.output import (
    LIMIT,
    json_option,
    note,
    note_foreign,
    show_messages,
    store_argument,
)
from penstock.cli.root import NO, examples
from penstock.cli.times import begin_option, check_order, end_option


@click.command(
    "find",
    epilog=examples(
        "penstock find data orders --key A-17",
        "penstock find data orders --begin 1h --end '2100-01-01 10:00+01:00' --limit 3 --json",
    ),
)
@store_argument
@click.argument("topic", shell_complete=topics)
@click.option(
    "--key", default=None, help="The message key; without it, messages are selected by time only."
)
@begin_option
@end_option
@click.option(
    "--limit",
    type=LIMIT,
    default=64,
    show_default=True,
    help="The maximum number of messages.",
)
@json_option
def command(
    path: str,
    topic: str,
    key: str | None,
    begin: int | None,
    end: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """Find messages of TOPIC by key, by time, or both."""
    if key is None and begin is None and end is None:
        raise click.UsageError("give --key, --begin or --end")
    check_order(begin, end)
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        if key is not None:
            found = iter(store.find(topic, key, begin_ms=begin, end_ms=end, limit=limit))
        else:
            starts = {
                queue: store.offset_at(topic, queue, time_ms=begin or 0)
                for queue in store.topics().get(topic, [])
            }
            found = itertools.takewhile(
                lambda m: end is None or m.store_time_ms <= end, store.scan(topic, starts=starts)
            )
        count = show_messages(itertools.islice(found, limit), json_lines=as_json)
        if not count:
            note(why_nothing(store, topic) or f"no message of topic {topic!r} matches")
    return 0 if count else NO
