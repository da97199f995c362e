"""The command `groups`: shows how far each consumer group is, and moves or deletes one."""

from pathlib import Path
from typing import Any

import click

import penstock
from penstock.escape import near
from penstock.format.names import is_hidden_progress
from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.completion import groups as group_names
from penstock_tools.cli.completion import topics as topic_names
from penstock_tools.cli.output import (
    chosen,
    counted,
    hide_system,
    json_option,
    note,
    note_foreign,
    out_json,
    own_settings_options,
    store_argument,
    system_option,
    table,
    time_text,
)
from penstock_tools.cli.root import NO, examples

_NO_WRITER = (
    "; no process has the store open for writing: until one has, they wait, and delays stand still"
)
_ENDS = "earliest", "latest"
NAMES = ("group", "topic", "queue", "offset", "lag")
_group_argument = click.argument("group", shell_complete=group_names)


class ListByDefault(click.Group):
    """A group of commands that lists if no command is named: `penstock groups PATH`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command `list` before its path or option; a mistyped command is answered with the nearest."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            hint = near(args[0], self.commands) if args else ""
            if hint and not ctx.resilient_parsing and not Path(args[0]).exists():
                raise click.UsageError(f"no command and no store {args[0]!r}{hint}", ctx)
            args = ["list", *args]
        return super().parse_args(ctx, args)


class _Place(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic since click 8.4 only
    """The type of `--to`: earliest, latest, or a time, whose value is Unix milliseconds."""

    name = "place"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        if value in _ENDS:
            return str(value)
        if hint := near(str(value), _ENDS):
            self.fail(f"no time, and neither earliest nor latest{hint}", param, ctx)
        from penstock_tools.cli.times import BEGIN  # noqa: PLC0415 - not for a help text

        try:
            return int(BEGIN.convert(value, param, ctx))
        except click.BadParameter as error:
            self.fail(f"neither earliest nor latest nor a time: {error.message}", param, ctx)


def _is_group(store: "penstock.Store", group: str) -> bool:
    """Tell whether the store has a group; says which ones it has otherwise."""
    from penstock_messaging.groups.overview import known_groups  # noqa: PLC0415 - as above
    from penstock_tools.cli.contents import no_group  # noqa: PLC0415 - not for a help text

    known = known_groups(store)
    if group not in known:
        note(no_group(group, known))
    return group in known


@click.group(
    "groups",
    cls=ListByDefault,
    epilog=examples(
        "penstock groups data",
        "penstock groups data --group billing --json",
        "penstock groups reset data billing --to earliest --dry-run",
    ),
)
def command() -> None:
    """List consumer groups: how far each has read, and how far it lags behind; reset or delete one.

    A store whose path is the name of a command, such as reset, is written ./reset.
    """


@command.command(
    "list",
    epilog=examples("penstock groups list data", "penstock groups list data --group billing"),
)
@store_argument
@click.option("--group", "only", default=None, shell_complete=group_names, help="Only this group.")
@system_option
@json_option
def list_groups(path: str, only: str | None, system: bool, as_json: bool) -> int:
    """List consumer groups: how far each has read, and how far it lags behind (the default)."""
    from penstock_messaging.groups.overview import overview  # noqa: PLC0415 - as above
    from penstock_tools.cli.state import state_of  # noqa: PLC0415 - not for a help text

    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        if only is not None and not _is_group(store, only):
            return NO
        rows, waiting, unreadable = overview(store, only)
        remarks = store.stats()["offsets_set_aside"]
        has_writer = state_of(store).used_by is not None
    rows = hide_system(rows, lambda row: is_hidden_progress(*row[:2]), shown=system)
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
        text = f"group {group}: {counted(count, 'nacked message')} wait{'s' * (count == 1)} to be retried"
        note(text if has_writer else text + _NO_WRITER)
    for remark in unreadable:
        note(remark)
    for remark in remarks:
        note(f"not used: {remark}")
    return 0


@command.command(
    "members",
    epilog=examples(
        "penstock groups members data billing", "penstock groups members data billing --json"
    ),
)
@store_argument
@_group_argument
@json_option
def members(path: str, group: str, as_json: bool) -> int:
    """List the living members of GROUP: their processes and topics."""
    from penstock_messaging.groups.members import living_members  # noqa: PLC0415 - as above
    from penstock_messaging.groups.overview import groups_of_store  # noqa: PLC0415 - as above

    names = ("member", "pid", "since_ms", "topics")
    with penstock.open(path, read_only=True) as store:
        known = groups_of_store(store, group)
        if not _is_group(store, group):
            return NO
        found = living_members(known.context.files, known.paths(group))
    if as_json:
        for m in found:
            out_json(
                **dict(zip(names, (m.id, m.pid, m.since_ms, m.topics.split("/")), strict=True))
            )
    elif found:
        rows = [(m.id, str(m.pid), time_text(m.since_ms), m.topics.split("/")) for m in found]
        table("", ("member", "process", "since", "topics"), rows)
    else:
        note(f"group {group} has no living member")
    return 0


@command.command(
    "reset",
    epilog=examples(
        "penstock groups reset data billing --to earliest --dry-run",
        "penstock groups reset data billing --to 1h --topic orders",
    ),
)
@store_argument
@_group_argument
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=topic_names,
    help="Only this topic; may be given more than once. By default all topics of the group.",
)
@click.option(
    "--to", type=_Place(), metavar="earliest|latest|TIME",
    help="The first message, the end, or the first message stored at this time, such as 1h (ago) or "
    "'2026-11-23 10:00'.",
)  # fmt: skip
@click.option("--shift", default=None, type=int,
    help="Move forward by this many messages; backward if negative.")  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Show where the group would continue; change nothing."
)
@json_option
def reset_group(
    path: str, group: str, topics: tuple[str, ...], to: str | int | None, shift: int | None, dry_run: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Move GROUP's offsets. Works while another process writes.

    If a consumer owns one of the queues, the error names its process, and no queue is changed. With --topic, a GROUP
    that has never consumed is given the place where it will begin.
    """
    from penstock_messaging.groups.overview import groups_of_store, known_groups, topics_of  # noqa: PLC0415 - as above
    from penstock_messaging.groups.reset import planned, reset  # noqa: PLC0415 - as above
    from penstock_tools.cli.contents import why_nothing  # noqa: PLC0415 - not for a help text

    if (to is None) == (shift is None):
        raise click.UsageError("give either --to or --shift")
    with penstock.open(path, read_only=True) as store:
        known = groups_of_store(store, group)
        is_new = bool(topics) and group not in known_groups(store)
        if not is_new and not _is_group(store, group):
            return NO
        there = {*store.topics(system=True), *store.topic_configs(system=True)}
        missing = [topic for topic in topics if topic not in there]
        if missing:
            note(why_nothing(store, missing[0]) or "")
            return NO
        chosen_topics = topics or topics_of(store, group)
        moves = planned(known, group, chosen_topics, to=to, shift=shift or 0)
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
    elif not as_json:
        note(
            f"{'new group' if is_new else 'group'} {group} {'begins' if is_new else 'continues'} there, in "
            f"{counted(len(moves), 'queue')}"
        )
    return 0


@command.command(
    "delete",
    epilog=examples("penstock groups delete data billing", "penstock groups delete data billing --apply"),
)  # fmt: skip
@store_argument
@_group_argument
@click.option("--apply", "apply", is_flag=True, help="Delete; without it, nothing is changed.")
@own_settings_options
@timeout_option
@json_option
def delete(
    path: str, group: str, apply: bool, settings: tuple[str, ...], config: str | None, as_json: bool
) -> int:
    """Show what deleting GROUP would remove: its offsets and journals. With --apply, delete it.

    Its dead letters and the messages that wait to be retried stay in their topics. No consumer of the group may live.
    A process that has the store open for writing is asked to delete it. Exit code 1 if --apply was not given.
    """
    from penstock_messaging.groups.members import living_members  # noqa: PLC0415 - not for a help text
    from penstock_messaging.groups.overview import groups_of_store, topics_of  # noqa: PLC0415 - as above

    with open_to_change(path, config, chosen(settings, None), changes=apply) as store:
        known = groups_of_store(store, group)
        if not _is_group(store, group):
            return NO
        topics = topics_of(store, group)
        living = living_members(known.context.files, known.paths(group))
        if apply:
            store.delete_group(group)
    if as_json:
        out_json(group=group, topics=topics, applied=apply)
    else:
        done = "deleted" if apply else "would delete"
        more = "" if apply else "; nothing was changed: run it again with --apply to delete"
        note(f"{done} group {group} with its offsets in {counted(len(topics), 'topic')}{more}")
        for member in living:
            note(f"it has a consumer in process {member.pid}: that must be closed first")
    return 0 if apply else NO
