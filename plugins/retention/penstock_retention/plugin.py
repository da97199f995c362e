"""Registers the retention policies of this package. Imports them only when a store is opened."""

from penstock import hookimpl


@hookimpl
def penstock_register_retention() -> list[type]:
    """Return the built-in retention policies."""
    from penstock_retention import policies  # noqa: PLC0415 - see the module

    return [policies.AgeRetention, policies.SizeRetention, policies.DiskRatioRetention]
