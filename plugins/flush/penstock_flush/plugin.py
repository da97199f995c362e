"""Registers the flush policies of this package. Imports them only when a store is opened."""

from penstock import hookimpl


@hookimpl
def penstock_register_flush() -> list[type]:
    """Return the built-in flush policies."""
    from penstock_flush import policies  # noqa: PLC0415 - see the module

    return [policies.SyncFlush, policies.AsyncFlush, policies.NoFlush]
