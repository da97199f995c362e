"""Registers the replicators and the commands of this package. Imports each only when it is needed."""

from collections.abc import Iterable

from penstock import hookimpl


@hookimpl
def penstock_register_commands() -> Iterable[object]:
    """Return the commands that this package adds to `penstock`."""
    from penstock_replicate.commands import replica  # noqa: PLC0415 - click is an extra, and slow to import

    return [replica.command]
