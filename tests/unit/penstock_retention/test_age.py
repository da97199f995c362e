"""By age: what is old enough goes, at its hours."""

import time
from pathlib import Path

import pytest

from penstock.contracts import Context, DiskUse, SegmentInfo
from penstock.contracts.geometry import Geometry
from penstock.files import Files
from penstock.testing import ManualClock, ManualWorkers, make_context
from penstock_retention.age import AgeOptions, AgeRetention

HOUR = 3_600_000


FOUR = int(time.mktime((2026, 11, 21, 4, 30, 0, 0, 0, -1))) * 1000


DISK = DiskUse(1, 1)


def policy(**options: object) -> AgeRetention:
    context = Context(
        root=Path("/"),
        files=Files(),
        clock=ManualClock(),
        geometry=Geometry(),
        spawn=ManualWorkers(),
    )
    return AgeRetention(AgeOptions(**options), context)  # type: ignore[arg-type] # a test's own dictionary


def segments(*ages_hours: float) -> list[SegmentInfo]:
    return [
        SegmentInfo(n, 1, int(FOUR - age * HOUR), Path("x")) for n, age in enumerate(ages_hours)
    ]


@pytest.mark.parametrize(
    ("ages", "count"),
    [
        ((100, 80, 73, 71, 1), 3),
        ((100, 10, 100, 1), 1),
        ((100,), 0),
        ((100, 100), 1),
        ((), 0),
        ((72, 0), 1),
    ],
)
def test_age_lets_the_oldest_go_never_the_last(ages: tuple[float, ...], count: int) -> None:
    assert policy().vote(segments(*ages), FOUR, DISK).expired_count == count


def test_age_votes_only_at_its_hours() -> None:
    old = segments(100, 1)
    assert policy().vote(old, FOUR + HOUR, DISK).expired_count == 0
    assert policy(delete_when="3;5").vote(old, FOUR + HOUR, DISK).expired_count == 1
    assert policy(delete_when="*").vote(old, FOUR + 9 * HOUR, DISK).expired_count == 1


def context() -> Context:
    return Context(
        root=Path("/"),
        files=Files(),
        clock=ManualClock(),
        geometry=Geometry(),
        spawn=ManualWorkers(),
    )


NOON = int(time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))) * 1000


def log(*ages_hours: float) -> list[SegmentInfo]:
    return [
        SegmentInfo(n, 1, int(NOON - age * HOUR), Path("x")) for n, age in enumerate(ages_hours)
    ]


def test_age_says_why_in_figures(tmp_path: Path) -> None:
    policy = AgeRetention(AgeOptions(), make_context(tmp_path))
    disk = DiskUse(1, 1)
    said = [
        policy.vote(log(70, 1), NOON, disk), policy.vote(log(73, 1), NOON, disk),
        policy.vote(log(100), NOON, disk), policy.vote(log(100, 73, 1), NOON + 16 * HOUR, disk),
    ]  # fmt: skip
    assert [(vote.expired_count, vote.reason) for vote in said] == [
        (0, "the oldest was written 70.0 hours ago; segments are kept for 72 hours"),
        (0, "1 not written for 72 hours, but segments are deleted at 04 o'clock"),
        (0, "the last segment is the only one"),
        (2, "not written for 72 hours"),
    ]
