"""The verb `get`: shows one message by its id or log offset."""

import click

import penstock
from penstock.errors import ArgumentError
from penstock_tools.cli.output import json_option, note_foreign, show_messages, store_argument
from penstock_tools.cli.root import examples


@click.command(
    "get",
    epilog=examples(
        "penstock get data 7F00000100002A9F0000000000000000", "penstock get data 0 --json"
    ),
)
@store_argument
@click.argument("address")
@json_option
def command(path: str, address: str, as_json: bool) -> int:
    """Show the message with the message id ADDRESS, or at the log offset ADDRESS."""
    with penstock.open(path, read_only=True) as store:
        note_foreign(store)
        try:
            message = store.at(int(address)) if _is_offset(address) else store.get(address)
        except ArgumentError as error:
            raise click.BadParameter(
                f"{address!r} is neither a log offset nor a message id, which has 32 or 56 hexadecimal digits",
                param_hint="ADDRESS",
            ) from error
        show_messages([message], json_lines=as_json)
    return 0


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20  # noqa: PLR2004 - digits of an i64
