"""The `none` flush policy: never syncs by itself; the operating system writes back when it chooses."""

from typing import ClassVar

from penstock.contracts import FlushPolicy


class NoFlush(FlushPolicy):
    """Syncs only on request: `flush()`, `submit`, a clean close. A power cut may lose everything after that.

    Use it for data that can be produced again, and as the baseline for comparing the other policies.
    """

    name: ClassVar[str] = "none"
    hears_appends: ClassVar[bool] = False

    def after_append(self, end_offset: int) -> None:
        """Do nothing."""
