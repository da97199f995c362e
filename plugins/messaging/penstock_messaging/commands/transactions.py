"""The command `transactions`: shows the messages that are prepared and not committed, and commits or rolls back one."""

from functools import partial
from typing import Any, cast

import click

import penstock
from penstock_messaging.commands.groups import ListByDefault
from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.output import (
    chosen,
    json_option,
    note,
    note_foreign,
    out_json,
    own_settings_options,
    store_argument,
    table,
)
from penstock_tools.cli.root import NO, examples

NAMES = ("transaction_id", "group", "topic", "queue", "age_s", "checks", "reason")


@click.group(
    "transactions",
    cls=ListByDefault,
    epilog=examples("penstock transactions data", "penstock transactions data --json"),
)
def command() -> None:
    """List messages that are prepared and not committed, with their age; commit one or roll one back.

    A store whose path is the name of a command, such as commit, is written ./commit.
    """


@command.command(
    "list",
    epilog=examples("penstock transactions list data", "penstock transactions list data --json"),
)
@store_argument
@json_option
def list_prepared(path: str, as_json: bool) -> int:
    """List messages that are prepared and not committed, oldest first (the default).

    The reason says why a commit would fail now.
    """
    from penstock_messaging.prepared.shown import age_text, row_of  # noqa: PLC0415 - not for a help text

    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        rows = [row_of(each) for each in store.prepared()]
    if as_json:
        for row in rows:
            out_json(**row)
        return 0
    if rows:
        texts = [
            {**row, "age_s": age_text(row["age_s"]), "reason": row["reason"] or ""} for row in rows
        ]
        table("", [*NAMES[:4], "age", *NAMES[5:]], [[row[name] for name in NAMES] for row in texts])
    else:
        note("no message is prepared and not finished")
    return 0


def _finish(path: str, transaction_id: str, config: str | None, settings: tuple[str, ...],
    outcome: str) -> int:  # fmt: skip
    with open_to_change(path, config, chosen(settings, None)) as store:
        found = [each for each in store.prepared() if each.transaction_id == transaction_id]
        if not found:
            note(f"no open prepared message has the id {transaction_id!r}; see penstock transactions "
                f"{path}")  # fmt: skip
            return NO
        places = {(each.group, each.topic, each.queue) for each in found}
        if len(places) > 1:
            listed = "; ".join(
                f"group {group}, {topic}/{queue}" for group, topic, queue in sorted(places)
            )
            note(f"different messages have the id {transaction_id!r} ({listed}), and nothing was changed: finish them "
                "in Python, by store.prepared()")  # fmt: skip
            return NO
        finish = partial(cast(Any, store).finish_prepared, [transaction_id, *places.pop()])
        for _ in found[:-1]:
            # A producer that was not answered has sent it again: only one may be committed.
            finish(commits=False)
        if outcome == "commit":
            receipt = finish(commits=True)
            note(f"committed to {found[-1].topic}/{receipt.queue}, queue offset {receipt.queue_offset}")  # fmt: skip
        else:
            finish(commits=False)
            store.flush()
            note("rolled back")
    return 0


@command.command(
    "commit",
    epilog=examples(
        "penstock transactions commit data 5F3C2A",
        "penstock transactions commit data 5F3C2A --set flush.use=sync",
    ),
)
@store_argument
@click.argument("transaction_id")
@own_settings_options
@timeout_option
def commit(path: str, transaction_id: str, config: str | None, settings: tuple[str, ...]) -> int:
    """Put the prepared message with TRANSACTION_ID into its topic."""
    return _finish(path, transaction_id, config, settings, "commit")


@command.command(
    "rollback",
    epilog=examples(
        "penstock transactions rollback data 5F3C2A",
        "penstock transactions rollback data 5F3C2A --set flush.use=sync",
    ),
)
@store_argument
@click.argument("transaction_id")
@own_settings_options
@timeout_option
def rollback(path: str, transaction_id: str, config: str | None, settings: tuple[str, ...]) -> int:
    """Drop the prepared message with TRANSACTION_ID."""
    return _finish(path, transaction_id, config, settings, "rollback")
