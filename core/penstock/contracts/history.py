"""What is known of a log beyond its records."""

from typing import Any, Protocol

import numpy as np

from penstock.format.java_hash import Int64s


class History(Protocol):
    """What is known of a log beyond its records: which topics a broker may have deleted, and who wrote what."""

    def is_unlisted(self, topic: str) -> bool:
        """Return whether the broker's list of topics is there and lacks this one, which it should have."""

    def are_ours(self, log_offsets: Int64s) -> Any:
        """Return, as an array of bool, which records Penstock wrote, or may have written."""

    def may_have_ours(self, first: int, last: int) -> bool:
        """Return whether Penstock wrote, or may have written, a record between two log offsets, or at one of them."""

    def is_one_run(self, first: int, last: int) -> bool:
        """Return whether Penstock surely wrote everything from one log offset to another."""


class NoHistory:
    """Nothing is known: no topic counts as deleted."""

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
