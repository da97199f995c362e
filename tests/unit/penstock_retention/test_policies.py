"""What the built-in policies vote for: by age at its hours, by size, and by how full the disk is."""

import time
from pathlib import Path
from typing import Any

import attrs
import pytest

import penstock
from penstock.contracts import DiskUse, SegmentInfo
from penstock.errors import ConfigError
from penstock.testing import make_context
from penstock_retention.policies import (
    HOUR_MS,
    AgeOptions,
    AgeRetention,
    DiskRatioOptions,
    DiskRatioRetention,
    SizeOptions,
    SizeRetention,
    check_hours,
    count_old,
)

FOUR = int(time.mktime((2026, 11, 21, 4, 30, 0, 0, 0, -1))) * 1000
NOON = int(time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))) * 1000
DISK = DiskUse(1, 1)


def segments(now_ms: int, *ages_hours: float) -> list[SegmentInfo]:
    """Return segments of 100 bytes that were last written so many hours ago."""
    return [
        SegmentInfo(n * 100, 100, int(now_ms - age * HOUR_MS), Path("x"))
        for n, age in enumerate(ages_hours)
    ]


# --- what counts as old: not written for so many hours, up to the first that is younger


@pytest.mark.parametrize(
    ("ages", "count"),
    [((1, 1, 0.999), 2), ((1, 1, 1), 2), ((1,), 0), ((), 0), ((5, 0, 5, 5), 1), ((0.999, 5), 0)],
)
def test_a_segment_is_old_from_the_hour_on_up_to_the_first_younger_one_and_never_the_last(
    ages: tuple[float, ...], count: int
) -> None:
    assert count_old(segments(FOUR, *ages), FOUR, 1) == count


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
def test_what_is_no_length_of_time_is_refused_by_the_options_name(hours: float) -> None:
    @attrs.frozen
    class Options:
        kept_hours: float = attrs.field(validator=check_hours)

    assert Options(0).kept_hours == 0
    with pytest.raises(ValueError, match="kept_hours is"):
        Options(hours)


# --- by age


def by_age(tmp_path: Path, **options: Any) -> AgeRetention:
    return AgeRetention(AgeOptions(**options), make_context(tmp_path))


@pytest.mark.parametrize(
    ("options", "after_ms", "count"),
    [({}, HOUR_MS, 0), ({"delete_when": "3;5"}, HOUR_MS, 1), ({"delete_when": "*"}, 9 * HOUR_MS, 1)],
)  # fmt: skip
def test_age_votes_only_at_its_hours(
    tmp_path: Path, options: dict[str, str], after_ms: int, count: int
) -> None:
    vote = by_age(tmp_path, **options).vote(segments(FOUR, 100, 1), FOUR + after_ms, DISK)
    assert vote.expired_count == count


@pytest.mark.parametrize(
    ("ages", "now_ms", "count", "reason"),
    [
        ((70, 1), NOON, 0, "the oldest was written 70.0 hours ago; segments are kept for 72 hours"),
        ((73, 1), NOON, 0, "1 not written for 72 hours, but segments are deleted at 04 o'clock"),
        ((100,), NOON, 0, "the last segment is the only one"),
        ((100, 73, 1), NOON + 16 * HOUR_MS, 2, "not written for 72 hours"),
    ],
)
def test_age_says_why_in_figures(
    tmp_path: Path, ages: tuple[float, ...], now_ms: int, count: int, reason: str
) -> None:
    vote = by_age(tmp_path).vote(segments(NOON, *ages), now_ms, DISK)
    assert (vote.expired_count, vote.reason) == (count, reason)


# --- by size


@pytest.mark.parametrize(
    ("limit", "count"), [(1000, 0), (500, 0), (499, 1), (400, 1), (301, 2), (100, 4), (0, 4)]
)
def test_size_lets_the_oldest_go_while_the_log_is_too_large(
    tmp_path: Path, limit: int, count: int
) -> None:
    size = SizeRetention(SizeOptions(bytes_max=limit), make_context(tmp_path))
    vote = size.vote(segments(FOUR, *[0] * 5), FOUR, DISK)
    assert vote.expired_count == count
    assert ("over" in vote.reason) == (limit < 500)


# --- by how full the disk is: three levels, and writes refused at the last


@pytest.fixture
def ratio(tmp_path: Path) -> DiskRatioRetention:
    return DiskRatioRetention(DiskRatioOptions(), make_context(tmp_path))


@pytest.mark.parametrize(
    ("percent", "count", "refuses"),
    [(74, 0, False), (75, 0, False), (76, 2, False), (85, 2, False), (86, 3, False), (90, 3, False),
     (91, 3, True), (100, 3, True)],
)  # fmt: skip
def test_disk_ratio_has_three_levels(
    ratio: DiskRatioRetention, percent: int, count: int, refuses: bool
) -> None:
    vote = ratio.vote(segments(FOUR, 100, 73, 71, 0), FOUR, DiskUse(percent, 100 - percent))
    assert (vote.expired_count, vote.refuse_writes) == (count, refuses)
    assert f"{percent} %" in vote.reason


def test_disk_ratio_rounds_up_and_resumes_only_at_the_lower_level(
    ratio: DiskRatioRetention,
) -> None:
    said = [ratio.vote(segments(FOUR, 0), FOUR, DiskUse(used, 1000 - used)).refuse_writes
            for used in (900, 901, 880, 851, 850, 900, 901)]  # fmt: skip
    assert said == [False, True, True, True, False, False, True]


def test_a_disk_that_no_longer_tells_its_size_refuses_nothing_and_nothing_afterwards(
    ratio: DiskRatioRetention,
) -> None:
    said = [ratio.vote(segments(FOUR, 0), FOUR, use).refuse_writes
            for use in (DiskUse(91, 9), DiskUse(0, 0), DiskUse(88, 12), DiskUse(91, 9))]  # fmt: skip
    assert said == [True, False, False, True]


def test_a_disk_that_does_not_tell_its_size_costs_nothing_young(ratio: DiskRatioRetention) -> None:
    """As a ratio of -1 in RocketMQ: what is old goes at any hour, nothing is forced or refused."""
    vote = ratio.vote(segments(NOON, 100, 73, 71, 1), NOON, DiskUse(0, 0))
    assert (vote.expired_count, vote.refuse_writes) == (2, False)
    assert "does not report its size" in vote.reason


@pytest.mark.parametrize(
    "wrong",
    [{"early_percent": 0}, {"refuse_percent": 101}, {"early_percent": 86}, {"forced_percent": 95}],
)
def test_levels_that_make_no_sense_are_refused(wrong: dict[str, int], tmp_path: Path) -> None:
    given: dict[str, Any] = {f"retention.disk-ratio.{name}": value for name, value in wrong.items()}
    with pytest.raises(ConfigError, match=r"retention\.disk-ratio"):
        penstock.open(tmp_path / "s", environ={}, retention=["disk-ratio"], **given)
