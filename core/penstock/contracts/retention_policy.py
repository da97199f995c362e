"""What may go."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.contracts.base import Strategy


class SegmentInfo(NamedTuple):
    """What a retention policy is told of a segment, oldest first."""

    base_offset: int
    size: int
    last_write_ms: int
    path: Path


class DiskUse(NamedTuple):
    """Bytes used and bytes still usable on the disk of the commit log."""

    used: int
    usable: int


class Vote(NamedTuple):
    """What a retention policy asks for.

    Attributes:
        expired_count: how many of the oldest segments may go; never the last one.
        reason: one phrase, for logs and for `retain --dry-run`.
        refuse_writes: no message may be put while this stands.
    """

    expired_count: int
    reason: str
    refuse_writes: bool = False


class RetentionPolicy(Strategy):
    """Says which segments may go (`[retention]`). Any number are configured; the largest vote counts.

    Capabilities: "refuses-writes" (may ask for a stop to writing).
    """

    @abstractmethod
    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Return how many of the oldest segments may go, and why. Must not touch the disk."""
