"""Registers the replicators and the commands of this package. Imports each only when it is needed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import Replicator


@hookimpl
def penstock_register_replicator() -> "list[type[Replicator]]":
    """Return the built-in replicators."""
    from penstock_replicate.master.ha import HaReplicator  # noqa: PLC0415 - see the module
    from penstock_replicate.ship.ship_replicator import ShipReplicator  # noqa: PLC0415 - see the module  # fmt: skip

    return [HaReplicator, ShipReplicator]


@hookimpl
def penstock_register_commands() -> Iterable[object]:
    """Return the commands that this package adds to `penstock`."""
    from penstock_replicate.commands import replica, restore  # noqa: PLC0415 - click is an extra, and slow to import  # fmt: skip

    return [replica.command, restore.command]
