"""What a retention policy is told and answers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.contracts.base import NoOptions
from penstock.contracts.retention_policy import DiskUse, RetentionPolicy, SegmentInfo, Vote
from penstock.testing import make_context


class AllButOne(RetentionPolicy):
    name = "all-but-one"

    def vote(self, segments: Sequence[SegmentInfo], now_ms: int, disk: DiskUse) -> Vote:
        return Vote(len(segments) - 1, f"{disk.used} used at {now_ms}")


def test_a_vote_stops_no_writing_unless_it_says_so() -> None:
    assert not Vote(3, "old").refuse_writes


def test_a_policy_sees_segments_time_and_disk(tmp_path: Path) -> None:
    policy = AllButOne(NoOptions(), make_context(tmp_path))
    segments = [SegmentInfo(at, 10, 0, tmp_path / str(at)) for at in (0, 10, 20)]
    assert policy.vote(segments, 7, DiskUse(used=5, usable=6)) == Vote(2, "5 used at 7")


def test_a_policy_must_vote(tmp_path: Path) -> None:
    class Silent(RetentionPolicy):
        name = "silent"

    with pytest.raises(TypeError, match="vote"):
        Silent(NoOptions(), make_context(tmp_path))  # type: ignore[abstract] # that is the question
