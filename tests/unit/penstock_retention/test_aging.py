"""What counts as old: segments not written for so many hours, up to the first that is younger."""

from pathlib import Path

import attrs
import pytest

from penstock.contracts import SegmentInfo
from penstock_retention.aging import HOUR_MS, check_hours, count_old


def segments(*last_writes_ms: int) -> list[SegmentInfo]:
    return [SegmentInfo(10 * at, 10, ms, Path(str(at))) for at, ms in enumerate(last_writes_ms)]


def test_a_segment_is_old_from_the_hour_on_and_not_before() -> None:
    found = segments(0, 0, 0)
    assert count_old(found, HOUR_MS - 1, 1) == 0
    assert count_old(found, HOUR_MS, 1) == 2


def test_the_last_segment_is_never_old() -> None:
    assert count_old(segments(0), 99 * HOUR_MS, 1) == 0
    assert count_old([], 99 * HOUR_MS, 1) == 0


def test_counting_ends_at_the_first_that_is_young() -> None:
    assert count_old(segments(0, 5 * HOUR_MS, 0, 0), 5 * HOUR_MS, 1) == 1


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
def test_what_is_no_length_of_time_is_refused_by_the_options_name(hours: float) -> None:
    @attrs.frozen
    class Options:
        kept_hours: float = attrs.field(validator=check_hours)

    assert Options(0).kept_hours == 0
    with pytest.raises(ValueError, match="kept_hours is"):
        Options(hours)
