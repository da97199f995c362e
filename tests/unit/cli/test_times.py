"""Times on the command line: as Penstock prints them, in other zones, and relative to now."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.output import time_text
from penstock.cli.times import (
    BEGIN,
    DurationParam,
    TimeParam,
    check_order,
    parse_duration,
    parse_time,
)
from penstock.testing import ManualClock

NOW = 1_795_000_000_123
DAY_MS = 24 * 3_600_000


# The years 1 to 9999, which is what a printed time has.
@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_every_printed_time_is_taken_as_it_is(time_ms: int) -> None:
    printed = time_text(time_ms)
    if not printed.endswith(" ms") and printed[:1] != "-" and len(printed.partition("-")[0]) == 4:
        assert parse_time(printed, NOW, up=True) == time_ms
        assert parse_time(printed, NOW, up=False) == time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-23 10:00:00+01:00", 1_795_424_400_000), ("2026-11-23 09:00:00Z", 1_795_424_400_000),
        ("2026-11-23T09:00", 1_795_424_400_000), ("2026-11-23", 1_795_392_000_000), (str(NOW), NOW), ("now", NOW),
        ("1h", NOW - 3_600_000), ("90s", NOW - 90_000), ("15min", NOW - 900_000), ("15m", NOW - 900_000),
        ("1h30min", NOW - 5_400_000), ("7d", NOW - 7 * DAY_MS), ("2w", NOW - 14 * DAY_MS), (" 250ms ", NOW - 250),
    ],
)  # fmt: skip
def test_a_time_has_these_forms(text: str, time_ms: int) -> None:
    assert parse_time(text, NOW, up=True) == time_ms


def test_fractions_of_a_millisecond_are_rounded_into_the_range() -> None:
    text = "1970-01-01 00:00:00.000500Z"
    assert (parse_time(text, NOW, up=True), parse_time(text, NOW, up=False)) == (1, 0)


@pytest.mark.parametrize(
    "text", ["", "x", "5", "2026", "1795424400", "5x", "1h ago", "h", "-1h", "2026-13-01", "²", "1e9", "1.5h", "9" * 30]
)  # fmt: skip
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not a time: a time is written like '2026-11-23 10:00:00"
    ):
        parse_time(text, NOW, up=True)


def test_an_option_takes_a_time_by_its_own_clock() -> None:
    clock = ManualClock()
    found = TimeParam(up=True, clock=clock)
    assert found.convert("1s", None, None) == clock.time_ms() - 1000
    assert found.convert(7, None, None) == 7
    with pytest.raises(click.BadParameter, match="is not a time"):
        BEGIN.convert("soon", None, None)


def test_a_range_that_ends_before_it_begins_is_a_mistake() -> None:
    check_order(None, 1)
    check_order(1, 1)
    check_order(2, None)
    with pytest.raises(click.UsageError, match="--begin is after --end"):
        check_order(2, 1)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("90s", 90_000), ("1h30min", 5_400_000), (" 2d ", 172_800_000), ("0s", 0)],
)
def test_a_duration_has_these_forms(text: str, ms: int) -> None:
    assert parse_duration(text) == ms
    assert DurationParam().convert(text, None, None) == ms
    assert DurationParam().convert(ms, None, None) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "1.5h", "9" * 13 + "s", "now"])
def test_what_is_no_duration_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="written like 500ms"):
        parse_duration(text)
    with pytest.raises(click.BadParameter, match="is not a duration"):
        DurationParam().convert(text, None, None)
