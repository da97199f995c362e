"""By how full the disk is: three levels, and writes refused at the last."""

import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.contracts import Context, DiskUse, SegmentInfo
from penstock.contracts.geometry import Geometry
from penstock.errors import ConfigError
from penstock.files import Files
from penstock.testing import ManualClock, ManualWorkers, make_context
from penstock_retention.age import AgeOptions, AgeRetention
from penstock_retention.disk_ratio import DiskRatioOptions, DiskRatioRetention

HOUR = 3_600_000


FOUR = int(time.mktime((2026, 11, 21, 4, 30, 0, 0, 0, -1))) * 1000


def policy(**options: object) -> AgeRetention:
    context = Context(
        root=Path("/"),
        files=Files(),
        clock=ManualClock(),
        geometry=Geometry(),
        spawn=ManualWorkers(),
    )
    return AgeRetention(AgeOptions(**options), context)  # type: ignore[arg-type] # a test's own dictionary


def info(number: int, age_hours: float, size: int = 100) -> SegmentInfo:
    return SegmentInfo(number * size, size, int(FOUR - age_hours * HOUR), Path("x"))


def context() -> Context:
    return Context(
        root=Path("/"),
        files=Files(),
        clock=ManualClock(),
        geometry=Geometry(),
        spawn=ManualWorkers(),
    )


@pytest.mark.parametrize(
    ("percent", "count", "refuses"),
    [(74, 0, False), (75, 0, False), (76, 2, False), (85, 2, False), (86, 3, False), (90, 3, False),
     (91, 3, True), (100, 3, True)],
)  # fmt: skip
def test_disk_ratio_has_three_levels(percent: int, count: int, refuses: bool) -> None:
    policy = DiskRatioRetention(DiskRatioOptions(), context())
    log = [info(0, 100), info(1, 73), info(2, 71), info(3, 0)]
    vote = policy.vote(log, FOUR, DiskUse(percent, 100 - percent))
    assert (vote.expired_count, vote.refuse_writes) == (count, refuses)
    assert f"{percent} %" in vote.reason


def test_disk_ratio_rounds_up_and_resumes_only_at_the_lower_level() -> None:
    policy = DiskRatioRetention(DiskRatioOptions(), context())
    said = [policy.vote([info(0, 0)], FOUR, DiskUse(used, 1000 - used)).refuse_writes
            for used in (900, 901, 880, 851, 850, 900, 901)]  # fmt: skip
    assert said == [False, True, True, True, False, False, True]


def test_a_disk_that_no_longer_tells_its_size_refuses_nothing_and_nothing_afterwards() -> None:
    policy = DiskRatioRetention(DiskRatioOptions(), context())
    said = [policy.vote([info(0, 0)], FOUR, use).refuse_writes
            for use in (DiskUse(91, 9), DiskUse(0, 0), DiskUse(88, 12), DiskUse(91, 9))]  # fmt: skip
    assert said == [True, False, False, True]


@pytest.mark.parametrize(
    "wrong",
    [{"early_percent": 0}, {"refuse_percent": 101}, {"early_percent": 86}, {"forced_percent": 95}],
)
def test_levels_that_make_no_sense_are_refused(wrong: dict[str, int], tmp_path: Path) -> None:
    given: dict[str, Any] = {f"retention.disk-ratio.{name}": value for name, value in wrong.items()}
    with pytest.raises(ConfigError, match=r"retention\.disk-ratio"):
        penstock.open(tmp_path / "s", environ={}, retention=["disk-ratio"], **given)


NOON = int(time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))) * 1000


def log(*ages_hours: float) -> list[SegmentInfo]:
    return [
        SegmentInfo(n, 1, int(NOON - age * HOUR), Path("x")) for n, age in enumerate(ages_hours)
    ]


def test_a_disk_that_does_not_tell_its_size_costs_nothing_young(tmp_path: Path) -> None:
    """As a ratio of -1 in RocketMQ: what is old goes at any hour, nothing is forced or refused."""
    policy = DiskRatioRetention(DiskRatioOptions(), make_context(tmp_path))
    assert policy.vote(log(1), NOON, DiskUse(95, 5)).refuse_writes
    vote = policy.vote(log(100, 73, 71, 1), NOON, DiskUse(0, 0))
    assert (vote.expired_count, vote.refuse_writes) == (2, False)
    assert "does not report its size" in vote.reason
