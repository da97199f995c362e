"""Never durable by itself: the system writes back when it likes."""

from typing import ClassVar

from penstock.contracts import FlushPolicy


class NoFlush(FlushPolicy):
    """Syncs only when somebody asks: `flush()`, `submit`, a clean close. A power cut may lose the rest.

    For data that can be made again, and as the floor that other policies are compared with.
    """

    name: ClassVar[str] = "none"
    hears_appends: ClassVar[bool] = False

    def after_append(self, end_offset: int) -> None:
        """Nothing."""
