"""The command group `topic`: lists the configurations of topics, and creates, changes and deletes topics."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

import penstock
from penstock.escape import near
from penstock.format.names import QUEUE_MAX, is_hidden
from penstock_messaging.commands.groups import ListByDefault
from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.completion import topics
from penstock_tools.cli.output import (
    chosen,
    counted,
    hide_system,
    json_option,
    note,
    note_foreign,
    out_json,
    settings_options,
    store_argument,
    system_option,
    table,
    topic_rows,
)
from penstock_tools.cli.root import NO, examples

if TYPE_CHECKING:
    from penstock.contracts import TopicConfig

_COLUMNS = ("topic", "queues", "write queues", "perm", "created by", "messages", "attributes")
_QUEUES = click.IntRange(1, QUEUE_MAX + 1)
_PERMS = {6: "read, write", 4: "read", 2: "write", 0: "none"}
_PERM_HELP = "Permissions: 4 (read), 2 (write), 6 (both) or 0; 1, inherit, may be added."
topic_argument = click.argument("topic", shell_complete=topics)


@click.group(
    "topic",
    cls=ListByDefault,
    epilog=examples("penstock topic data", "penstock topic create data invoices --queues 8"),
)
def group() -> None:
    """List, create, change and delete topics: their queues, permissions and attributes."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `create` and `alter` share."""
    # The help shows the last one first.
    for option in (
        json_option,
        timeout_option,
        settings_options,
        click.option(
            "--attribute", "pairs", multiple=True, metavar="NAME=VALUE",
            help="An attribute of RocketMQ 5, such as message.type=FIFO; may be given more than once.",
        ),
        click.option(
            "--write-queues", type=_QUEUES,
            help="To how many of them new messages are distributed, by default to all.",
        ),
        click.option("--queues", type=_QUEUES, help="How many queues the topic has."),
    ):  # fmt: skip
        command = option(command)
    return command


@group.command(
    "list", epilog=examples("penstock topic list data", "penstock topic list data --json")
)
@store_argument
@system_option
@json_option
def list_command(path: str, system: bool, as_json: bool) -> int:
    """List topics with their configuration and message counts."""
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        counts = {row["topic"]: row for row in topic_rows(store)}
        configs = store.topic_configs(system=True)
        remarks = store.lowlevel.extension("messaging").stats()["config_remarks"]
    rows = []
    for topic in hide_system(sorted({*counts, *configs}), is_hidden, shown=system):
        messages = counts[topic]["messages"] if topic in counts else 0
        if as_json:
            found = configs.get(topic)
            out_json(**{"topic": topic, "messages": messages, **_facts(found)})
        else:
            rows.append(_row(topic, configs.get(topic), messages))
    if not as_json:
        table("", _COLUMNS, rows)
    for remark in remarks:
        note(remark)
    return 0


def _facts(config: "TopicConfig | None") -> dict[str, Any]:
    """Return a configuration as JSON has it; every value is null for a topic without one."""
    names = ("read_queues", "write_queues", "perm", "order", "attributes", "is_auto")
    found = {name: getattr(config, name, None) for name in names}
    return found if config is None else {**found, "attributes": dict(config.attributes)}


def _row(topic: str, config: "TopicConfig | None", messages: int) -> Sequence[object]:
    if config is None:
        return topic, "", "", "", "not listed", messages, ""
    bits = _PERMS.get(config.perm & 6, "")
    attributes = [f"{name}={value}" for name, value in config.attributes.items()]
    by = "message" if config.is_auto else "declaration"
    return (
        topic, config.read_queues, config.write_queues, f"{config.perm} ({bits})", by, messages, attributes,
    )  # fmt: skip


@group.command(
    "create",
    epilog=examples(
        "penstock topic create data invoices --queues 8",
        "penstock topic create data events --queues 4 --attribute message.type=FIFO --json",
    ),
)
@click.argument("path", type=click.Path())
@topic_argument
@_options
@click.option("--perm", type=click.IntRange(0, 7), default=6, show_default=True, help=_PERM_HELP)
def create_command(
    path: str,
    topic: str,
    queues: int | None,
    write_queues: int | None,
    perm: int,
    pairs: tuple[str, ...],
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Create TOPIC in the store at PATH, with a fixed number of queues, by default extensions.messaging.default_queues.

    A store that does not exist is created, too.
    """
    attributes = _attributes(pairs)
    with open_to_change(path, config, chosen(settings, broker_conf)) as store:
        made = store.create_topic(
            topic, queues=queues, write_queues=write_queues, perm=perm, attributes=attributes
        )
    _show(made, "created", as_json=as_json)
    return 0


@group.command(
    "alter",
    epilog=examples(
        "penstock topic alter data orders --queues 8",
        "penstock topic alter data orders --perm 4 --json",
    ),
)
@store_argument
@topic_argument
@_options
@click.option("--perm", type=click.IntRange(0, 7), help=_PERM_HELP)
def alter_command(
    path: str,
    topic: str,
    queues: int | None,
    write_queues: int | None,
    perm: int | None,
    pairs: tuple[str, ...],
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Change TOPIC; attributes without an option keep their value. An attribute with an empty value is removed.

    From then on, the topic has a fixed number of queues. To have fewer of them, lower --write-queues first, and
    --queues once consumers have read the others to their end.
    """
    attributes = _attributes(pairs)
    if queues is None and write_queues is None and perm is None and not attributes:
        raise click.UsageError("nothing to change: give --queues, --write-queues, --perm or --attribute")  # fmt: skip
    with open_to_change(path, config, chosen(settings, broker_conf)) as store:
        made = store.alter_topic(
            topic, queues=queues, write_queues=write_queues, perm=perm, attributes=attributes
        )
    _show(made, "changed", as_json=as_json)
    return 0


@group.command(
    "delete",
    epilog=examples("penstock topic delete data orders", "penstock topic delete data orders --apply"),
)  # fmt: skip
@store_argument
@topic_argument
@click.option("--apply", "apply", is_flag=True, help="Delete; without it, nothing is changed.")
@settings_options
@timeout_option
@json_option
def delete_command(
    path: str,
    topic: str,
    apply: bool,
    settings: tuple[str, ...],
    config: str | None,
    broker_conf: str | None,
    as_json: bool,
) -> int:
    """Show what deleting TOPIC would remove: messages, and offsets of groups. With --apply, delete it.

    The messages cannot be brought back. The log keeps their bytes until retention deletes their segments. Exit code 1
    if --apply was not given.
    """
    given = chosen(settings, broker_conf)
    with open_to_change(path, config, given, changes=apply) as store:
        messages = sum(
            store.max_offset(topic, queue) - store.min_offset(topic, queue)
            for queue in store.topics(system=True).get(topic, ())
        )
        groups = sorted({each.group for each in store.groups(system=True) if each.topic == topic})
        if apply:
            store.delete_topic(topic)
        elif topic not in {*store.topics(system=True), *store.topic_configs(system=True)}:
            raise penstock.UnknownTopicError(topic,
                near(topic, store.topics(system=True)) or "; `penstock topic list` shows all")  # fmt: skip
    if as_json:
        out_json(topic=topic, messages=messages, groups=groups, applied=apply)
    else:
        what = f"{counted(messages, 'message')} and offsets of {counted(len(groups), 'group')}"
        done = "deleted" if apply else "would delete"
        more = "" if apply else "; nothing was changed: run it again with --apply to delete"
        note(f"{done} topic {topic} with {what}{more}")
    return 0 if apply else NO


def _show(config: "TopicConfig", done: str, *, as_json: bool) -> None:
    if as_json:
        out_json(topic=config.topic, **_facts(config))
        return
    some = config.write_queues != config.read_queues
    writes = f", new messages go to {config.write_queues:,} of them" if some else ""
    perm = f"perm {config.perm} ({_PERMS.get(config.perm & 6, '')})"
    note(f"{done} topic {config.topic}: {counted(config.read_queues, 'queue')}{writes}, {perm}")


def _attributes(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.UsageError(f"--attribute takes NAME=VALUE, not {pair!r}")
        found[name] = value
    return found
