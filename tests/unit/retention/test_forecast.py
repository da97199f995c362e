"""Looking ahead: what is foretold happens, and policies say why; the disk of the tests is one, too."""

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.retention.test_runner_faults import SEGMENT, bases, boom, fill, opened, policy_that

from penstock.contracts import DiskUse, SegmentInfo
from penstock.errors import ConfigError, DiskFullError
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, make_context, open_store
from penstock_retention.age import AgeOptions, AgeRetention
from penstock_retention.disk_ratio import DiskRatioOptions, DiskRatioRetention

HOUR = 3_600_000
NOON = int(time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))) * 1000


def log(*ages_hours: float) -> list[SegmentInfo]:
    return [
        SegmentInfo(n, 1, int(NOON - age * HOUR), Path("x")) for n, age in enumerate(ages_hours)
    ]


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
        foretold = store.forecast(3)
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
        first = store.forecast(3)[0]
        assert first.at_ms is not None
        at = time.localtime(first.at_ms / 1000)
        assert (at.tm_hour, at.tm_min, at.tm_sec) == (4, 0, 0)
        assert first.at_ms - clock.now_ms >= 5 * HOUR


@pytest.mark.parametrize("alloc", ["preallocate", "recycle", "on-demand"])
def test_files_made_ahead_are_no_segments_to_a_reader(alloc: str, tmp_path: Path) -> None:
    """A reader sees them under their names; the one being written must stay the last one."""
    workers = ManualWorkers()
    with opened(tmp_path / "s", alloc=alloc, spawn=workers) as store:
        while len(store._log.segments) < 3:
            store.put("t", b"x" * 1000)
            for name in workers.by_name.keys() - {"penstock-retain"}:
                workers.run(name)
        own = store.forecast(1)
        with open_store(tmp_path / "s", read_only=True, **ALL_POLICIES) as reader:
            foretold = reader.forecast(1)
        assert [d.segment.base_offset for d in foretold] == [d.segment.base_offset for d in own]
        assert foretold[-1].reason == "the last segment is never deleted"


ALL_POLICIES: dict[str, Any] = {"retention": ["size"], "retention.size.bytes_max": 0}


def test_a_reader_foretells_while_segments_go(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        fill(store, 8)
        store.flush()
        store.find("t", "none")
        with open_store(tmp_path / "s", read_only=True, **ALL_POLICIES) as reader:
            assert len(reader.forecast(1)) == 8
            assert store.retain() == 7
            fill(store, 3)
            assert [d.segment.base_offset for d in reader.forecast(1)] == bases(store)
            assert [space.messages for space in reader.space()] == [len(list(reader.scan("t")))]


def test_a_policy_that_fails_is_named_as_the_reason(tmp_path: Path) -> None:
    with opened(tmp_path / "s", strategies=[policy_that(boom)], retention=["under-test"]) as store:
        fill(store, 2)
        assert "'under-test' failed: ZeroDivisionError" in store.forecast(1)[0].reason
    with opened(tmp_path / "e", retention=[]) as store:
        assert store.forecast(1) == []
        fill(store, 2)
        assert store.forecast(1)[0].reason == "no policy is configured"


# --- what policies say


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


def test_a_disk_that_does_not_tell_its_size_costs_nothing_young(tmp_path: Path) -> None:
    """As a ratio of -1 in RocketMQ: what is old goes at any hour, nothing is forced or refused."""
    policy = DiskRatioRetention(DiskRatioOptions(), make_context(tmp_path))
    assert policy.vote(log(1), NOON, DiskUse(95, 5)).refuse_writes
    vote = policy.vote(log(100, 73, 71, 1), NOON, DiskUse(0, 0))
    assert (vote.expired_count, vote.refuse_writes) == (2, False)
    assert "does not report its size" in vote.reason


@pytest.mark.parametrize("policy", ["age", "disk-ratio"])
@pytest.mark.parametrize("hours", [-1.0, float("inf"), float("nan")])
def test_hours_that_are_no_time_are_refused(policy: str, hours: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reserved_hours is .* 0 or more"):
        opened(tmp_path / "s", retention=[policy], **{f"retention.{policy}.reserved_hours": hours})


# --- the simulated disk


def test_the_simulated_disk_is_full_when_it_is() -> None:
    page = 4096
    disk = SimulatedDisk(capacity=10 * page, clock=ManualClock())
    file = disk.create(Path("/a"))
    file.resize(100 * page)
    assert disk.free_bytes(Path("/")) == (0, 10 * page), "a hole takes no room"
    file.allocate_range(0, 6 * page)
    assert disk.free_bytes(Path("/")) == (6 * page, 4 * page)
    disk.others = 3 * page
    file.pwrite(b"x" * 100, 6 * page)
    for grow in (
        lambda: file.pwrite(b"x", 7 * page), lambda: file.allocate_range(0, 8 * page),
        lambda: file.allocate(8 * page), lambda: disk.create(Path("/b")),
    ):  # fmt: skip
        with pytest.raises(OSError, match="space") as caught:
            grow()
        assert caught.value.errno == errno.ENOSPC
    assert not disk.exists(Path("/b"))
    file.pwrite(b"y" * 7 * page, 0)
    assert file.punch(5 * page, 100 * page)
    assert disk.used == 8 * page
    assert file.pread(3 * page, 4 * page) == b"y" * page + bytes(2 * page)
    disk.others = 0
    disk.create(Path("/b")).close()
    file.close()


def test_a_store_into_a_hole_of_the_simulated_disk_is_found() -> None:
    """On a real disk that is full it kills the process, and on one that is not nobody notices."""
    disk = SimulatedDisk()
    file = disk.create(Path("/a"))
    file.resize(16384)
    file.allocate_range(4096, 8192)
    memory = file.map(16384, writable=True)
    memory[5000:5004] = b"fine"
    disk.image()
    memory[8192:8196] = b"hole"
    with pytest.raises(AssertionError, match="a store into a hole, at page 2"):
        disk.image()


def test_times_on_the_simulated_disk_are_those_of_its_clock() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(capacity=4096, clock=clock)
    file = disk.create(Path("/a"))
    clock.now_ms += 5000
    assert disk.open(Path("/a")).mtime_ms == clock.now_ms - 5000
    file.pwrite(b"x", 0)
    clock.now_ms += 5000
    assert disk.open(Path("/a")).mtime_ms == clock.now_ms - 5000
    file.sync()
    assert file.mtime_ms == clock.now_ms
    file.close()


def test_a_store_on_a_full_simulated_disk_says_so_and_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = SimulatedDisk(capacity=1 << 20, clock=clock)
    with opened(tmp_path / "s", files=disk, clock=clock, write="file") as store:
        fill(store, 2)
        disk.others = (1 << 20) - disk.used
        with pytest.raises(DiskFullError):
            fill(store, 3)
        disk.others = 0
        fill(store, 3)
        names = [entry.name for entry in disk.entries(tmp_path / "s" / "commitlog")]
        assert [int(name) for name in names] == [0, SEGMENT, 2 * SEGMENT]
