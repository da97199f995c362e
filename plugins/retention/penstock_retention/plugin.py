"""Registers the retention policies of this package. Imports them only when a store is opened."""

from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import RetentionPolicy


@hookimpl
def penstock_register_retention() -> "list[type[RetentionPolicy]]":
    """Return the built-in retention policies."""
    from penstock_retention.age import AgeRetention  # noqa: PLC0415 - see the module
    from penstock_retention.disk_ratio import DiskRatioRetention  # noqa: PLC0415 - as above
    from penstock_retention.size import SizeRetention  # noqa: PLC0415 - as above

    return [AgeRetention, SizeRetention, DiskRatioRetention]
