"""Facts about a log beyond its records."""

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.format.arrays import Int64s, np


class History(Protocol):
    """Facts about a log beyond its records: removed topics, those that a broker may have deleted, and who wrote which range."""

    @property
    def removed(self) -> Mapping[str, int]:
        """Removed topics, each with the log offset before which its records need no queue entry."""

    def is_unlisted(self, topic: str) -> bool:
        """Return whether the broker's list of topics exists and lacks this topic, which it should have."""

    def are_ours(self, log_offsets: Int64s) -> Any:
        """Return, as an array of bool, which records Penstock wrote, or may have written."""

    def may_have_ours(self, first: int, last: int) -> bool:
        """Return whether Penstock wrote, or may have written, a record from log offset `first` to `last` inclusive."""

    def is_one_run(self, first: int, last: int) -> bool:
        """Return whether Penstock certainly wrote everything from log offset `first` to `last`."""


class NoHistory:
    """Nothing is known: no topic counts as deleted."""

    removed: Mapping[str, int] = {}

    def is_unlisted(self, topic: str) -> bool:
        """See `History`."""
        return False

    def are_ours(self, log_offsets: Int64s) -> Any:
        """See `History`."""
        return np.ones(len(log_offsets), np.bool_)

    def may_have_ours(self, first: int, last: int) -> bool:
        """See `History`."""
        return True

    def is_one_run(self, first: int, last: int) -> bool:
        """See `History`."""
        return False


NO_HISTORY = NoHistory()
