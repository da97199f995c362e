"""Registers the replicators of this package. Imports them only when a store is opened."""

from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import Replicator


@hookimpl
def penstock_register_replicator() -> "list[type[Replicator]]":
    """Return the built-in replicators."""
    from penstock_replicate.master.ha import HaReplicator  # noqa: PLC0415 - see the module

    return [HaReplicator]
