"""What this package registers with Penstock. Loaded at each opening of a store: nothing heavy is imported here."""

from collections.abc import Iterable

import penstock


@penstock.hookimpl
def penstock_register_commands() -> Iterable[object]:
    """Offer `penstock spark`."""
    from penstock_spark.cli import group  # noqa: PLC0415 - click is an extra, and slow to import

    return [group]
