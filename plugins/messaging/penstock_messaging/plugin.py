"""Registers the extension and the commands of this package. Imports each only when it is needed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import Extension


@hookimpl
def penstock_register_extension() -> "list[type[Extension]]":
    """Return the extension `messaging`."""
    from penstock_messaging.extension import MessagingExtension  # noqa: PLC0415 - see the module

    return [MessagingExtension]


@hookimpl
def penstock_register_commands() -> Iterable[object]:
    """Return the commands that this package adds to `penstock`."""
    from penstock_messaging.commands import (  # noqa: PLC0415 - click is an extra, and slow to import
        delayed,
        dlq,
        groups,
        topic,
        transactions,
    )

    return [topic.group, groups.command, dlq.command, delayed.command, transactions.command]
