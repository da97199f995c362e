"""Looking ahead: at which hours segments will go, and what policies say of it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.retention.stores import boom, fill, opened, policy_that

from penstock.errors import ArgumentError, ConfigError
from penstock.retention.runner import DAYS_MAX
from penstock.testing import ManualClock, SimulatedDisk

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def half_hour_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("half_hour_zone")
def test_hours_are_those_of_the_clock_on_the_wall(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = SimulatedDisk(capacity=100 << 20, clock=clock)
    with opened(
        tmp_path / "s", files=disk, clock=clock, write="file", retention=["age"],
        **{"retention.age.reserved_hours": 5.0},
    ) as store:  # fmt: skip
        fill(store, 3)
        first = store.lowlevel.forecast(3)[0]
        assert first.at_ms is not None
        at = time.localtime(first.at_ms / 1000)
        assert (at.tm_hour, at.tm_min, at.tm_sec) == (4, 0, 0)
        assert first.at_ms - clock.now_ms >= 5 * HOUR


@pytest.mark.parametrize("is_any_hour", [True, False])
@pytest.mark.usefixtures("half_hour_zone")
def test_a_segment_that_expires_within_an_hour_goes_when_the_forecast_says(
    is_any_hour: bool, tmp_path: Path
) -> None:
    """Policies were asked once an hour: it was forecast for the next hour, for the next day, or as kept."""
    clock = ManualClock()
    clock.now_ms += HOUR - (clock.now_ms + HOUR // 2) % HOUR
    when = "*" if is_any_hour else str(time.localtime(clock.now_ms // 1000).tm_hour)
    disk = SimulatedDisk(capacity=100 << 20, clock=clock)
    with opened(
        tmp_path / "s", files=disk, clock=clock, write="file", retention=["age"],
        **{"retention.age.reserved_hours": 0.5, "retention.age.delete_when": when, "retention.interval_ms": MINUTE},
    ) as store:  # fmt: skip
        for segments in (2, 3, 4, 5):
            fill(store, segments)
            store.flush()
            clock.now_ms += 6 * MINUTE
        forecast = [(each.segment.base_offset, each.at_ms) for each in store.lowlevel.forecast(3)]
        gone: list[tuple[int, int | None]] = []
        for _ in range(35):
            low = store.stats()["log_min_offset"]
            if store.retain():
                gone.append((low, clock.now_ms))
            clock.now_ms += MINUTE
        assert gone == forecast[:-1]
        assert len(gone) == 4
        assert forecast[-1][1] is None


def test_a_policy_that_fails_is_named_as_the_reason(tmp_path: Path) -> None:
    with opened(tmp_path / "s", strategies=[policy_that(boom)], retention=["under-test"]) as store:
        fill(store, 2)
        assert "'under-test' failed: ZeroDivisionError" in store.lowlevel.forecast(1)[0].reason
    with opened(tmp_path / "e", retention=[]) as store:
        assert store.lowlevel.forecast(1) == []
        fill(store, 2)
        assert store.lowlevel.forecast(1)[0].reason == "no policy is configured"
        with pytest.raises(ArgumentError, match="from 0 to 3660"):
            store.lowlevel.forecast(DAYS_MAX + 1)


@pytest.mark.parametrize("policy", ["age", "disk-ratio"])
@pytest.mark.parametrize("hours", [-1.0, float("inf"), float("nan")])
def test_hours_that_are_no_time_are_refused(policy: str, hours: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reserved_hours is .* 0 or more"):
        opened(tmp_path / "s", retention=[policy], **{f"retention.{policy}.reserved_hours": hours})
