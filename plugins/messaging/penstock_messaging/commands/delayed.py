"""The command `penstock delayed`: lists the messages that wait for their time, and cancels one."""

import time
from typing import TYPE_CHECKING

import click

import penstock
from penstock_messaging.commands.groups import ListByDefault
from penstock_tools.cli.beside import open_to_change, timeout_option
from penstock_tools.cli.output import (
    chosen,
    json_option,
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
    from penstock.contracts import DelayedMessage


@click.group(
    "delayed",
    cls=ListByDefault,
    epilog=examples("penstock delayed data", "penstock delayed cancel data 7F00000100002A9F0000000000000104"),
)  # fmt: skip
def command() -> None:
    """List and cancel messages that wait for their time: those put with a delay or a time, not with a level."""


@command.command(
    "list", epilog=examples("penstock delayed list data", "penstock delayed list data --json")
)
@store_argument
@click.option("--limit", type=click.IntRange(1), help="At most this many messages.")
@json_option
def list_(path: str, limit: int | None, as_json: bool) -> int:
    """List the waiting messages by due time: their ids, targets and times."""
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        found = store.delayed()
    shown = found[:limit]
    if as_json:
        for each in shown:
            out_json(**each._asdict())
        return 0
    now_ms = time.time_ns() // 1_000_000
    columns = ("message id", "topic", "queue", "due", "in", "waits since", "body")
    table("", columns, [_row(each, now_ms) for each in shown])
    if len(found) > len(shown):
        note(f"{len(found) - len(shown):,} more wait")
    if not found:
        note("no message waits for its time")
    return 0


def _row(message: "DelayedMessage", now_ms: int) -> tuple[object, ...]:
    left_s = (message.due_ms - now_ms) / 1000
    return (
        message.message_id, message.topic, message.queue, time_text(message.due_ms),
        f"{left_s:.1f} s" if left_s > 0 else "due", time_text(message.born_time_ms), f"{message.body_bytes:,} B",
    )  # fmt: skip


@command.command(
    "cancel",
    epilog=examples("penstock delayed cancel data 7F00000100002A9F0000000000000104"),
)  # fmt: skip
@store_argument
@click.argument("message_id")
@own_settings_options
@timeout_option
@json_option
def cancel(
    path: str, message_id: str, settings: tuple[str, ...], config: str | None, as_json: bool
) -> int:
    """Cancel the message with MESSAGE_ID, so that it is not delivered. Exit code 1 if it does not wait any more.

    A process that has the store open for writing is asked to do it.
    """
    with open_to_change(path, config, chosen(settings, None)) as store:
        is_cancelled = store.cancel_delayed(message_id)
    if as_json:
        out_json(message_id=message_id, cancelled=is_cancelled)
    elif is_cancelled:
        out(f"{message_id} is cancelled")
    else:
        note(
            f"{message_id} does not wait: it is delivered, was cancelled before, or was put without a time"
        )
    return 0 if is_cancelled else NO
