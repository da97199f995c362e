"""Looking ahead: what is foretold happens, and policies say why; the disk of the tests is one, too."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.retention.stores import ALL, bases, boom, fill, opened, policy_that

from penstock.errors import ConfigError
from penstock.files import Files
from penstock.log.segmented_log import SegmentedLog
from penstock.retention.runner import DAYS_MAX, RetentionForecast
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store

HOUR = 3_600_000


# --- the forecast


def test_rounds_are_foretold_as_they_will_be(tmp_path: Path) -> None:
    """Ten at a time, and no more than it takes to get below the level."""
    clock = ManualClock()
    disk = SimulatedDisk(capacity=100 << 20, clock=clock)
    with opened(
        tmp_path / "s", files=disk, clock=clock, write="file", retention=["disk-ratio"]
    ) as store:
        fill(store, 34)
        disk.others += disk.capacity * 857 // 1000 - disk.used
        foretold = store.lowlevel.forecast(3)
        times = [d.at_ms for d in foretold if d.at_ms is not None]
        assert times == [clock.now_ms] * 10 + [clock.now_ms + 10_000] * (len(times) - 10)
        assert [d.is_now for d in foretold] == [at < 10 for at in range(34)]
        assert "within" in foretold[-2].reason or "over 75 %" in foretold[-2].reason
        gone = [store.retain() for _ in range(4)]
        assert gone[:2] == [10, len(times) - 10]
        assert gone[2:] == [0, 0]


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


@pytest.mark.parametrize("alloc", ["preallocate", "recycle", "on-demand"])
def test_files_made_ahead_are_no_segments_to_a_reader(alloc: str, tmp_path: Path) -> None:
    """A reader sees them under their names; the one being written must stay the last one."""
    workers = ManualWorkers()
    with opened(tmp_path / "s", alloc=alloc, spawn=workers) as store:
        while store.stats()["segments"] < 3:
            store.put("t", b"x" * 1000, queue=0)
            for name in workers.by_name.keys() - {"penstock-retain"}:
                workers.run(name)
        own = store.lowlevel.forecast(1)
        with open_store(tmp_path / "s", read_only=True, **ALL) as reader:
            foretold = reader.lowlevel.forecast(1)
        assert [d.segment.base_offset for d in foretold] == [d.segment.base_offset for d in own]
        assert foretold[-1].reason == "the last segment is never deleted"


def test_a_reader_foretells_while_segments_go(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        fill(store, 8)
        store.flush()
        store.find("none", "t")
        with open_store(tmp_path / "s", read_only=True, **ALL) as reader:
            assert len(reader.lowlevel.forecast(1)) == 8
            assert store.retain() == 7
            fill(store, 3)
            assert [d.segment.base_offset for d in reader.lowlevel.forecast(1)] == bases(store)
            assert [space.messages for space in reader.space()] == [len(list(reader.scan("t")))]


def test_a_policy_that_fails_is_named_as_the_reason(tmp_path: Path) -> None:
    with opened(tmp_path / "s", strategies=[policy_that(boom)], retention=["under-test"]) as store:
        fill(store, 2)
        assert "'under-test' failed: ZeroDivisionError" in store.lowlevel.forecast(1)[0].reason
    with opened(tmp_path / "e", retention=[]) as store:
        assert store.lowlevel.forecast(1) == []
        fill(store, 2)
        assert store.lowlevel.forecast(1)[0].reason == "no policy is configured"


# --- what policies say


@pytest.mark.parametrize("policy", ["age", "disk-ratio"])
@pytest.mark.parametrize("hours", [-1.0, float("inf"), float("nan")])
def test_hours_that_are_no_time_are_refused(policy: str, hours: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reserved_hours is .* 0 or more"):
        opened(tmp_path / "s", retention=[policy], **{f"retention.{policy}.reserved_hours": hours})


# --- the simulated disk


@pytest.mark.slow
def test_without_policies_every_segment_with_records_is_kept(tmp_path: Path) -> None:
    for base, data in ((0, b"x" * 4096), (4096, b"x" * 4096), (8192, bytes(4096))):
        (tmp_path / f"{base:020d}").write_bytes(data)
    log = SegmentedLog(Files(), tmp_path, 4096, mapped=False)
    log.load(repair=False)
    forecast = RetentionForecast(log, list, Files(), lambda: 0, interval_ms=1000, is_foreign=False)
    found = forecast.forecast(1)
    assert [(each.segment.base_offset, each.at_ms) for each in found] == [(0, None), (4096, None)]
    assert found[-1].reason == "the last segment is never deleted"
    for days in (0, DAYS_MAX):
        assert forecast.forecast(days) == found
    for days in (-1, DAYS_MAX + 1):
        with pytest.raises(ConfigError, match="0 to 3660"):
            forecast.forecast(days)
