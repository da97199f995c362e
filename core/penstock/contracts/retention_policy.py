"""Retention policies: the strategies that decide which segments are deleted."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.contracts.base import Strategy


class SegmentInfo(NamedTuple):
    """The facts about one segment for a retention policy.

    Attributes:
        base_offset: the log offset of its first byte.
        size: its bytes.
        last_write_ms: when it was last written, by the time of its file; if that is not plausible, by the next segment's.
        path: its file.
        is_ahead: the time of its file is in the future, so `last_write_ms` is another one.
    """

    base_offset: int
    size: int
    last_write_ms: int
    path: Path
    is_ahead: bool = False


class DiskUse(NamedTuple):
    """Bytes used and bytes still usable on the disk of the commit log."""

    used: int
    usable: int


class Vote(NamedTuple):
    """The decision of a retention policy.

    Attributes:
        expired_count: how many of the oldest segments may be deleted; never includes the last one.
        reason: one phrase, for logs and for `retain --dry-run`.
        refuse_writes: puts are refused until a later vote has False here.
    """

    expired_count: int
    reason: str
    refuse_writes: bool = False


class RetentionPolicy(Strategy):
    """Decides which segments may be deleted (`[retention]`). Any number may be configured; the largest vote counts.

    Capabilities: "refuses-writes" (may refuse puts).
    """

    @abstractmethod
    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        """Return how many of the oldest segments may be deleted, and why. Must not access the disk.

        Args:
            segments: all segments, oldest first.
            now_ms: the time in Unix milliseconds.
            disk: the use of the disk that holds the log.
        """
