"""Registers the replicator and the command of this package. Imports each only when it is needed."""

from collections.abc import Iterable

from penstock import hookimpl


@hookimpl
def penstock_register_replicator() -> list[type]:
    """Return the built-in replicator."""
    from penstock_replicate.ha import HaReplicator  # noqa: PLC0415 - see the module

    return [HaReplicator]


@hookimpl
def penstock_register_commands() -> Iterable[object]:
    """Return the command that this package adds to `penstock`."""
    from penstock_replicate import commands  # noqa: PLC0415 - click is an extra, and slow to import

    return [commands.group]
