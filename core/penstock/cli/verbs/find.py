"""The verb `find`: finds messages by key and time."""

import itertools

import click

import penstock
from penstock.cli.completion import topics
from penstock.cli.output import json_option, note, note_foreign, show_messages, store_argument
from penstock.cli.root import NO, examples


@click.command(
    "find",
    epilog=examples(
        "penstock find data orders --key A-17",
        "penstock find data orders --begin 2020-01-01 --end 2100-01-01 --limit 3 --json",
    ),
)
@store_argument
@click.argument("topic", shell_complete=topics)
@click.option(
    "--key", default=None, help="The message key; without it, messages are selected by time only."
)
@click.option(
    "--begin", type=click.DateTime(), default=None, help="Stored at or after this UTC time."
)
@click.option(
    "--end", type=click.DateTime(), default=None, help="Stored at or before this UTC time."
)
@click.option("--limit", default=64, show_default=True, help="The maximum number of messages.")
@json_option
def command(
    path: str, topic: str, key: str | None, begin: object, end: object, limit: int, as_json: bool
) -> int:
    """Find messages of TOPIC by key, by time, or both."""
    low, high = _ms(begin), _ms(end)
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        if key is not None:
            found = iter(store.find(topic, key, begin_ms=low, end_ms=high, limit=limit))
        else:
            if low is None and high is None:
                raise click.UsageError("give --key, --begin or --end")
            starts = {
                queue: store.offset_at(topic, queue, time_ms=low or 0)
                for queue in store.topics().get(topic, [])
            }
            found = itertools.takewhile(
                lambda m: high is None or m.store_time_ms <= high, store.scan(topic, starts=starts)
            )
        count = show_messages(itertools.islice(found, limit), json_lines=as_json)
    if not count:
        note(f"no message of topic {topic!r} matches")
    return 0 if count else NO


def _ms(when: object) -> int | None:
    from datetime import UTC, datetime  # noqa: PLC0415 - used here only

    if not isinstance(when, datetime):
        return None
    return int(when.replace(tzinfo=UTC).timestamp() * 1000)
