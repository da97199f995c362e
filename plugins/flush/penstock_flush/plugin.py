"""Registers the flush policies of this package. Imports them only when a store is opened."""

from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import FlushPolicy


@hookimpl
def penstock_register_flush() -> "list[type[FlushPolicy]]":
    """Return the built-in flush policies."""
    from penstock_flush.asynchronous import AsyncFlush  # noqa: PLC0415 - see the module
    from penstock_flush.none import NoFlush  # noqa: PLC0415 - as above
    from penstock_flush.sync import SyncFlush  # noqa: PLC0415 - as above

    return [SyncFlush, AsyncFlush, NoFlush]
