"""A second copy of a store while it is written: `ha`, on RocketMQ's own protocol, and `ship`, to a folder or a URL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_replicate.following.follow import follow
    from penstock_replicate.following.follower import LogFollower
    from penstock_replicate.roles.status_file import ReplicaStatus
    from penstock_replicate.ship.restoring import RestoreReport, list_archive, restore

__all__ = [
    "LogFollower",
    "ReplicaStatus",
    "RestoreReport",
    "follow",
    "list_archive",
    "restore",
]
_HOMES = {
    "LogFollower": "following.follower",
    "ReplicaStatus": "roles.status_file",
    "RestoreReport": "ship.restoring",
    "follow": "following.follow",
    "list_archive": "ship.restoring",
    "restore": "ship.restoring",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: what it needs is heavy, and few need it."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
