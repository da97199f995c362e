"""A second copy of a store while it is written: `ha`, on RocketMQ's own protocol, and `ship`, to a folder or a URL."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_replicate.ship.restoring import RestoreReport, list_archive, restore

__all__ = ["RestoreReport", "list_archive", "restore"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in __all__:
        from penstock_replicate.ship import restoring  # noqa: PLC0415 - heavy, and few need it

        return getattr(restoring, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
