"""Registers the flush policies of this package."""

from penstock import hookimpl
from penstock.contracts import FlushPolicy
from penstock_flush.asynchronous import AsyncFlush
from penstock_flush.none import NoFlush
from penstock_flush.sync import SyncFlush


@hookimpl
def penstock_register_flush() -> list[type[FlushPolicy]]:
    """Return the built-in flush policies."""
    return [SyncFlush, AsyncFlush, NoFlush]
