"""The hooks and strategies of this package. Loaded whenever a store is opened, so it imports nothing heavy."""

from pathlib import Path
from typing import Any

import penstock


@penstock.hookimpl
def penstock_register_commands() -> list[object]:
    """Offer `penstock spark`."""
    from penstock_spark.cli import group  # noqa: PLC0415 - click is an extra, and slow to import

    return [group]


@penstock.hookimpl
def penstock_register_retention() -> list[type]:
    """Offer the archive."""
    from penstock_spark.archive import ArchiveRetention  # noqa: PLC0415 - only if a store is opened

    return [ArchiveRetention]


@penstock.hookimpl
def penstock_segment_expired(path: str, base_offset: int, size: int, config: Any) -> None:
    """Archive a segment's messages if the store's configuration requests it; an error keeps the segment."""
    from penstock_spark.archive import ArchiveRetention, archive  # noqa: PLC0415 - as above

    if ArchiveRetention.name in config.retention.use:
        options = config.options_for("retention", ArchiveRetention)
        archive(Path(path).parent.parent, base_offset + size, options, config.files.mode)
