"""Registers the retention policies of this package."""

from penstock import hookimpl
from penstock.contracts import RetentionPolicy
from penstock_retention.age import AgeRetention
from penstock_retention.disk_ratio import DiskRatioRetention
from penstock_retention.size import SizeRetention


@hookimpl
def penstock_register_retention() -> list[type[RetentionPolicy]]:
    """Return the built-in retention policies."""
    return [AgeRetention, SizeRetention, DiskRatioRetention]
