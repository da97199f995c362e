"""Verbs that read messages: read, tail, find, get. They open the store read-only."""

import itertools

import click

import penstock
from penstock import StoredMessage
from penstock.cli.output import json_option, note, show_messages, tell_foreign
from penstock.cli.root import NO, examples

store_argument = click.argument("path", type=click.Path(exists=True))


@click.command(
    "read",
    epilog=examples(
        "penstock read data orders",
        "penstock read data orders --queue 0 --offset 2 --limit 5 --tag 'created || paid' --json",
    ),
)
@store_argument
@click.argument("topic")
@click.option(
    "--queue", type=int, default=None, help="One queue; all, in the order stored, if left out."
)
@click.option("--offset", type=int, default=None, help="Queue offset to begin at.")
@click.option("--limit", default=20, show_default=True, help="How many messages at most.")
@click.option("--tag", default="*", help="Only these tags, as 'a || b'.")
@json_option
def read_command(
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
        tell_foreign(store)
        found = (m for m in store.scan(topic, queue, start=offset) if wanted.matches(m))
        count = show_messages(itertools.islice(found, limit), json_lines=as_json)
        if not count:
            note(
                f"no messages of topic {topic!r} there; topics: {', '.join(store.topics()) or 'none'}"
            )
    return 0 if count else NO


@click.command(
    "tail",
    epilog=examples(
        "penstock tail data orders --limit 2", "penstock tail data orders --limit 1 --json"
    ),
)
@store_argument
@click.argument("topic")
@click.option("--limit", default=10, show_default=True, help="How many of the newest messages.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on with what is put from now on, until Ctrl-C."
)
@json_option
def tail_command(path: str, topic: str, limit: int, follow: bool, as_json: bool) -> int:
    """Show the newest messages of TOPIC; with -f also those to come."""
    with penstock.open(path, read_only=True) as store:
        tell_foreign(store)
        queues = store.topics().get(topic, [])
        if not queues:
            # Raises for a topic that is there, and whose queues are not understood.
            store.max_offset(topic)
        newest: list[StoredMessage] = []
        for queue in queues:
            start = max(store.max_offset(topic, queue) - limit, store.min_offset(topic, queue))
            newest.extend(store.scan(topic, queue, start=start))
        newest = sorted(newest, key=lambda m: m.log_offset)[-limit:]
        count = show_messages(newest, json_lines=as_json, at_once=follow)
        if follow:
            last = newest[-1].log_offset if newest else -1
            starts = {q: store.max_offset(topic, q) for q in queues}
            coming = store.scan(topic, follow=True, starts=starts)
            later = (m for m in coming if m.log_offset > last)
            count += show_messages(later, json_lines=as_json, at_once=True)
    return 0 if count else NO


@click.command(
    "find",
    epilog=examples(
        "penstock find data orders --key A-17",
        "penstock find data orders --begin 2020-01-01 --end 2100-01-01 --limit 3 --json",
    ),
)
@store_argument
@click.argument("topic")
@click.option("--key", default=None, help="The key; without one, messages are found by time alone.")
@click.option(
    "--begin", type=click.DateTime(), default=None, help="Stored at or after this UTC time."
)
@click.option(
    "--end", type=click.DateTime(), default=None, help="Stored at or before this UTC time."
)
@click.option("--limit", default=64, show_default=True, help="How many messages at most.")
@json_option
def find_command(
    path: str, topic: str, key: str | None, begin: object, end: object, limit: int, as_json: bool
) -> int:
    """Find messages of TOPIC by key, by time, or both."""
    low, high = _ms(begin), _ms(end)
    with penstock.open(path, read_only=True) as store:
        tell_foreign(store)
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
        note("nothing found")
    return 0 if count else NO


def _ms(when: object) -> int | None:
    from datetime import UTC, datetime  # noqa: PLC0415 - used here only

    if not isinstance(when, datetime):
        return None
    return int(when.replace(tzinfo=UTC).timestamp() * 1000)


@click.command(
    "get",
    epilog=examples(
        "penstock get data 7F00000100002A9F0000000000000000", "penstock get data 0 --json"
    ),
)
@store_argument
@click.argument("address")
@json_option
def get_command(path: str, address: str, as_json: bool) -> int:
    """Show the message with a message id, or at a log offset."""
    with penstock.open(path, read_only=True) as store:
        tell_foreign(store)
        message = store.at(int(address)) if _is_offset(address) else store.get(address)
        show_messages([message], json_lines=as_json)
    return 0


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20  # noqa: PLR2004 - digits of an i64
