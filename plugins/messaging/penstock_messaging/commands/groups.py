"""The command `groups`: shows how far each consumer group is, and moves or deletes one."""

from collections.abc import Callable
from typing import Any

import click

import penstock
from penstock import Store
from penstock.cli.completion import groups as group_names
from penstock.cli.output import json_option, note, note_foreign, out_json, store_argument, table
from penstock.cli.root import examples
from penstock.cli.state import state_of
from penstock.cli.times import BEGIN
from penstock.errors import ConfigError, StorageError, UnknownStrategyError
from penstock_messaging.groups.fold import Position
from penstock_messaging.groups.members import living_members
from penstock_messaging.groups.paths import GroupPaths, check_group_name, groups_of
from penstock_messaging.groups.reset import delete_files, planned, reset
from penstock_messaging.groups.taking import Groups

_NO_WRITER = (
    "; no process has the store open for writing: until one has, they wait, and delays stand still"
)
NAMES = ("group", "topic", "queue", "offset", "lag")


class ListByDefault(click.Group):
    """A group of commands that lists if no command is named: `penstock groups PATH`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command `list` before a path or an option of it."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    "groups",
    cls=ListByDefault,
    epilog=examples(
        "penstock groups data",
        "penstock groups data --group billing --json",
        "penstock groups reset data --group billing --to earliest --dry-run",
    ),
)
def command() -> None:
    """List consumer groups: how far each has read, and how many messages it lags; reset or delete one.

    A store whose path is the name of a command, such as reset, is written ./reset.
    """


def _groups(store: Store) -> Groups | None:
    """Return the groups of a store; None if the extension is not in use."""
    try:
        extension: Any = store.extension("messaging")
    except UnknownStrategyError:
        return None
    known: Groups = extension.groups
    return known


@command.command("list")
@store_argument
@click.option("--group", "only", default=None, shell_complete=group_names, help="Only this group.")
@json_option
def list_groups(path: str, only: str | None, as_json: bool) -> int:
    """List consumer groups: how far each has read, and how many messages it lags (the default)."""
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        rows, waiting = _rows(store, only)
        remarks = store.stats()["offsets_set_aside"]
        has_writer = state_of(store).used_by is not None
    if as_json:
        for row in rows:
            out_json(**dict(zip(NAMES, row, strict=True)))
    else:
        table("", NAMES, rows)
    if any(row[-1] < 0 for row in rows):
        note(
            "a negative lag means that the offset is after the end of the queue: messages were lost, or the offsets "
            "are newer than the log. Opening the store for writing sets the offset back to the queue's end"
        )
    for group, count in sorted(waiting.items()):
        text = f"group {group}: {count} refused messages wait to be retried"
        note(text if has_writer else text + _NO_WRITER)
    for remark in remarks:
        note(f"not used: {remark}")
    return 0


def _rows(
    store: Store, only: str | None
) -> tuple[list[tuple[str, str, int, int, int]], dict[str, int]]:
    """Return a row for each queue of each group, and how many refused messages wait, by group."""
    committed = {
        (group, topic, queue): offset
        for (group, topic), queues in store.groups().items()
        for queue, offset in queues.items()
    }
    waiting: dict[str, int] = {}
    for key, position in _positions(store).items():
        committed[key] = position.base
        if position.nacked and only in (None, key[0]):
            waiting[key[0]] = waiting.get(key[0], 0) + len(position.nacked)
    rows = [
        (group, topic, queue, offset, store.max_offset(topic, queue) - offset)
        for (group, topic, queue), offset in sorted(committed.items())
        if only in (None, group)
    ]
    return rows, waiting


def _positions(store: Store) -> dict[tuple[str, str, int], Position]:
    """Return the positions of groups that have journals."""
    known = _groups(store)
    if known is None:
        return {}
    files, found = known.context.files, {}
    for group in groups_of(files, store.path):
        for topic, queue in GroupPaths(store.path, group).journals(files):
            try:
                position = known.position(group, topic, queue)
            except StorageError as error:
                note(f"group {group}, queue {topic}/{queue}: {error}")
                continue
            if position is not None:
                found[group, topic, queue] = position
    return found


def _required(store: Store) -> Groups:
    known = _groups(store)
    if known is None:
        raise ConfigError("the command needs the extension messaging: add it to extensions.use")
    return known


_group_option: Callable[[Any], Any] = click.option(
    "--group", "group", required=True, shell_complete=group_names, help="The group."
)


@command.command("members")
@store_argument
@_group_option
@json_option
def members(path: str, group: str, as_json: bool) -> int:
    """List the living members of a group: their processes and topics."""
    check_group_name("groups", group)
    names = ("member", "pid", "since_ms", "topics")
    with penstock.open(path, read_only=True) as store:
        known = _required(store)
        found = living_members(known.context.files, known.paths(group))
    rows = [(m.id, m.pid, m.since_ms, m.topics) for m in found]
    if as_json:
        for row in rows:
            out_json(**dict(zip(names, row, strict=True)))
    else:
        table("", names, rows)
    return 0


@command.command("reset")
@store_argument
@_group_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; repeatable. Default: all topics of the group.",
)
@click.option("--to", "to", default=None, help="earliest, latest, or a time as of --begin, such as 1h (ago).")  # fmt: skip
@click.option("--shift", default=None, type=int, help="So many messages forward; backward if negative.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show where the group would go on; change nothing.")
@json_option
def reset_group(
    path: str, group: str, topics: tuple[str, ...], to: str | None, shift: int | None, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Let a group go on elsewhere, in queues that no consumer has at the moment.

    A queue that a consumer has is refused with its process, and then no queue is changed.
    """
    check_group_name("groups", group)
    if (to is None) == (shift is None):
        raise click.UsageError("give either --to or --shift")
    target = to if to in (None, "earliest", "latest") else BEGIN.convert(to, None, None)
    with penstock.open(path, read_only=True) as store:
        known = _required(store)
        chosen = topics or tuple(sorted({key[1] for key in _keys(store) if key[0] == group}))
        moves = planned(known, group, chosen, to=target, shift=shift or 0)
        if not dry_run:
            reset(known, group, moves)
    names = ("topic", "queue", "before", "after")
    if as_json:
        for move in moves:
            out_json(**dict(zip(names, move, strict=True)))
    else:
        table("", names, [["" if v is None else v for v in move] for move in moves])
    if dry_run:
        note("nothing was changed (--dry-run)")
    return 0


def _keys(store: Store) -> set[tuple[str, str, int]]:
    committed = {(g, t, q) for (g, t), queues in store.groups().items() for q in queues}
    return committed | set(_positions(store))


@command.command("delete")
@store_argument
@_group_option
@click.confirmation_option(prompt="Delete what the store keeps of this group?")
def delete(path: str, group: str) -> int:
    """Delete what Penstock keeps of a group: journals, starts and members.

    Its committed offsets in config/consumerOffset.json stay, as do its retries and dead letters.
    """
    check_group_name("groups", group)
    with penstock.open(path, read_only=True) as store:
        delete_files(_required(store), group)
    return 0
