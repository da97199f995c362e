"""What this package registers."""

from penstock.contracts import RetentionPolicy
from penstock.hookspecs import hookimpl
from penstock_retention.age import AgeRetention


@hookimpl
def penstock_register_retention() -> list[type[RetentionPolicy]]:
    """Offer the built-in retention policies."""
    return [AgeRetention]
