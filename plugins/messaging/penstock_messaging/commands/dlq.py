"""The command `penstock dlq`: lists dead letters, shows them, and puts them back."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

import penstock
from penstock_messaging.commands.groups import ListByDefault
from penstock_tools.cli.beside import alone, open_to_change, timeout_option
from penstock_tools.cli.completion import dead_letter_groups
from penstock_tools.cli.output import (
    chosen,
    counted,
    json_option,
    message_facts,
    message_line,
    note,
    note_foreign,
    out,
    out_json,
    own_settings_options,
    store_argument,
    table,
    time_text,
)
from penstock_tools.cli.root import NO, examples

if TYPE_CHECKING:
    from penstock_messaging.retries.dead_letters import DeadLetterQueue, Replayed

_OFFSETS = click.IntRange(0, (1 << 63) - 1)
_offset_option = click.option(
    "--offset", type=_OFFSETS, help="Begin at this offset of the dead letters."
)
_limit_option = click.option(
    "--limit", type=click.IntRange(1), help="At most this many dead letters."
)
_group_argument = click.argument("group", shell_complete=dead_letter_groups)


@click.group(
    "dlq",
    cls=ListByDefault,
    epilog=examples("penstock dlq data", "penstock dlq replay data billing --dry-run"),
)
def command() -> None:
    """List, show and replay dead letters: messages that a consumer group gave up after its last retry."""


@command.command("list", epilog=examples("penstock dlq list data", "penstock dlq list data --json"))
@store_argument
@json_option
def list_(path: str, as_json: bool) -> int:
    """List the groups that have dead letters."""
    from penstock_messaging.retries.dead_letters import queues  # noqa: PLC0415 - not for a help text

    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        found = queues(store)
    if as_json:
        for each in found:
            out_json(**each._asdict())
    else:
        names = ("group", "dead letters", "not replayed", "oldest", "newest")
        table("", names, [_row(each) for each in found])
        if not found:
            note("no group has dead letters")
    return 0


def _row(queue: "DeadLetterQueue") -> tuple[object, ...]:
    times = [time_text(t) if t is not None else "" for t in (queue.oldest_ms, queue.newest_ms)]
    return queue.group, queue.total, queue.left, *times


@command.command(
    "show",
    epilog=examples("penstock dlq show data billing", "penstock dlq show data billing --limit 1 --json"),
)  # fmt: skip
@store_argument
@_group_argument
@_offset_option
@_limit_option
@json_option
def show(path: str, group: str, offset: int | None, limit: int | None, as_json: bool) -> int:
    """Show the dead letters of GROUP, oldest first: offset, first topic, number of tries, and why the last failed.

    Exit code 1 if there are none.
    """
    from penstock_messaging.retries.dead_letters import letters  # noqa: PLC0415 - as above

    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        count = 0
        for message in letters(store, group, offset):
            if limit is not None and count == limit:
                note(f"there are more than {limit}: --limit shows them")
                break
            count += 1
            if as_json:
                out_json(**_facts(message))
            else:
                out(_line(message))
        if not count:
            note(_none_there(store, group, offset))
    return 0 if count else NO


def _line(message: penstock.StoredMessage) -> str:
    from penstock_messaging.retries.copies import first_topic, reason  # noqa: PLC0415 - as above

    ended = f"tried {counted(message.reconsume_times, 'time')}"
    if why := reason(message):
        ended += f", {why}"
    return message_line(message, f"{message.queue_offset}: {first_topic(message)}, {ended}")


def _none_there(store: "penstock.Store", group: str, offset: int | None) -> str:
    """Return why a group has no dead letters to show or to replay."""
    from penstock_messaging.retries.dead_letters import queues  # noqa: PLC0415 - as above

    found = {queue.group: queue for queue in queues(store)}
    if group in found and found[group].total and offset is not None:
        return f"group {group} has no dead letters at offset {offset} or after it"
    if group in found:
        return f"group {group} has no dead letters any more: retention has deleted them"
    others = f": {', '.join(found)} {'has' if len(found) == 1 else 'have'} some" if found else ""
    return f"group {group} has no dead letters{others or ', and no other group has any'}"


def _facts(message: penstock.StoredMessage) -> dict[str, Any]:
    from penstock_messaging.retries.copies import first_topic, origin, reason  # noqa: PLC0415 - as above

    first = origin(message)
    return {
        **message_facts(message), "first_topic": first_topic(message), "first_message_id": first.message_id,
        "reconsume_times": message.reconsume_times, "reason": reason(message) or None,
    }  # fmt: skip


@command.command(
    "replay",
    epilog=examples(
        "penstock dlq replay data billing --dry-run",
        "penstock dlq replay data billing --to topic --limit 10",
    ),
)
@store_argument
@_group_argument
@click.option(
    "--to", "target", type=click.Choice(["group", "topic"]), default="group", show_default=True,
    help="group: only GROUP gets them again. topic: they go back to their first topic, and every group gets them.",
)  # fmt: skip
@_offset_option
@_limit_option
@click.option("--dry-run", is_flag=True, help="Change nothing: show what would be put back.")
@own_settings_options
@timeout_option
@json_option
def replay_(
    path: str,
    group: str,
    target: str,
    offset: int | None,
    limit: int | None,
    dry_run: bool,
    settings: tuple[str, ...],
    config: str | None,
    as_json: bool,
) -> int:
    """Put the dead letters of GROUP back, as messages that were never retried.

    Begins after the last replay, unless --offset is given. The dead letters themselves stay until retention deletes
    them. A process that has the store open for writing is asked to put them back. Exit code 1 if GROUP has no dead
    letters, or if some are left out.
    """
    from penstock_messaging.retries.copies import dead_letter_topic  # noqa: PLC0415 - as above
    from penstock_messaging.retries.dead_letters import replay  # noqa: PLC0415 - as above

    skipped = 0

    def report(batch: list["Replayed"]) -> None:
        nonlocal skipped
        for each in batch:
            skipped += bool(each.reason)
            _report(each, as_json=as_json)

    with (
        open_to_change(path, config, chosen(settings, None), changes=not dry_run) as store,
        nullcontext() if dry_run else alone(store, f"dlq replay {group}"),
    ):
        if dead_letter_topic(group) not in store.topics(system=True):
            note(_none_there(store, group, None))
            return NO
        count = replay(
            store, group, to_topic=target == "topic", start=offset, limit=limit, dry_run=dry_run, on_batch=report
        )  # fmt: skip
    if not as_json:
        did = "would be put back; nothing was changed" if dry_run else "put back"
        left_out = f"; {counted(skipped, 'dead letter')} left out" if skipped else ""
        note(f"{counted(count, 'dead letter')} {did}{left_out}")
    return 1 if skipped else 0


def _report(each: "Replayed", *, as_json: bool) -> None:
    """Print what was done with one dead letter."""
    if as_json:
        out_json(
            offset=each.offset, message_id=each.message.message_id, topic=each.topic, queue=each.queue,
            reason=each.reason or None,
        )  # fmt: skip
    elif each.reason:
        note(f"dead letter {each.offset} is not put back: {each.reason}")
    else:
        note(f"dead letter {each.offset} to {each.topic}/{each.queue}")
