"""Seven days of retention on a clock and a disk of the test's own."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.lanes import rounds

from penstock.errors import ReadOnlyError
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, open_store

pytestmark = pytest.mark.slow


HOUR = 3_600_000
MINUTE = 60_000
START = int(time.mktime((2026, 11, 16, 0, 0, 0, 0, 0, -1))) * 1000
SEGMENT = 64 * 1024


class Week:
    """A store, a producer by day and night, and what the test knows of both."""

    def __init__(self, path: Path, writer: str, **settings: Any) -> None:
        self.clock = ManualClock(START)
        self.workers = ManualWorkers()
        self.disk = SimulatedDisk(capacity=8 << 20, clock=self.clock)
        self.store = open_store(
            path, files=self.disk, clock=self.clock, spawn=self.workers, write=writer,
            **{"retention.pause_ms": 0, **settings},
        )  # fmt: skip
        # When each message was put, by its number.
        self.put_ms: list[int] = []
        self.refused = 0

    @property
    def hour(self) -> int:
        return time.localtime(self.clock.now_ms / 1000).tm_hour

    def put(self, count: int) -> None:
        for _ in range(count):
            try:
                self.store.put("t", b"%d:" % len(self.put_ms) + b"x" * 1800, queue=0)
            except ReadOnlyError:
                self.refused += 1
                continue
            self.put_ms.append(self.clock.now_ms)

    def pass_hour(self) -> None:
        """Ten minutes at a time: put, sync, ask the policies as often as it takes."""
        for _ in range(6):
            self.put(9 if 8 <= self.hour < 20 else 2)
            self.store.flush()
            for _ in range(3):
                self.workers.run_all()
            self.clock.now_ms += 10 * MINUTE

    def numbers(self) -> list[int]:
        """Return the numbers of the messages that are left."""
        return [int(m.body.partition(b":")[0]) for m in self.store.scan("t")]

    def first_write_ms(self) -> int:
        return self.store.lowlevel.forecast(0)[0].segment.last_write_ms


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("writer", ["file", "mmap"])
def test_a_week_by_age(tmp_path: Path, writer: str) -> None:
    """Nothing young goes; after the hour at which segments go, nothing old is left."""
    week = Week(tmp_path / "s", writer, retention=["age"], **{"retention.age.reserved_hours": 30.0})
    reserved = 30 * HOUR
    low, left = 0, [0]
    with week.store:
        for _ in range(7 * 24):
            hour = week.hour
            week.pass_hour()
            left = week.numbers()
            assert left == list(range(left[0], len(week.put_ms))), "the oldest went, in order"
            gone = week.put_ms[: left[0]]
            assert all(at <= week.clock.now_ms - reserved for at in gone), "nothing young goes"
            if hour == 4:
                # Of the oldest segment that is left, something was written within the time.
                assert week.first_write_ms() > week.clock.now_ms - reserved - HOUR
            elif gone and hour != 5:
                assert week.store.stats()["log_min_offset"] == low, "only at four o'clock"
            low = week.store.stats()["log_min_offset"]
        assert week.put_ms[left[0]] > week.clock.now_ms - reserved - 30 * HOUR
        assert not list(week.store.verify())


@pytest.mark.slow
def test_a_week_by_size(tmp_path: Path) -> None:
    limit = 12 * SEGMENT
    week = Week(tmp_path / "s", "file", retention=["size"], **{"retention.size.bytes_max": limit})
    with week.store:
        for _ in range(rounds(gate=3, night=7) * 24):
            week.pass_hour()
            assert week.store.stats()["segments"] * SEGMENT <= limit + SEGMENT
            left = week.numbers()
            assert left == list(range(left[0], len(week.put_ms)))
        assert week.store.stats()["segments"] == limit // SEGMENT
        assert not list(week.store.verify())


def test_a_week_as_the_disk_fills_and_empties(tmp_path: Path) -> None:
    """Old segments go early, then any; writes are refused over the limit, and resume below."""
    week = Week(
        tmp_path / "s", "file", retention=["age", "disk-ratio"],
        **{"retention.age.reserved_hours": 72.0, "retention.disk-ratio.reserved_hours": 24.0},
    )  # fmt: skip
    capacity = week.disk.capacity
    with week.store:
        for _ in range(48):
            week.pass_hour()
        assert week.refused == 0
        # Above the first level: what is older than a day goes, at any hour, and nothing younger.
        week.disk.others += capacity * 80 // 100 - week.disk.used
        week.pass_hour()
        left = week.numbers()
        young = week.clock.now_ms - 24 * HOUR - HOUR
        assert left[0] > 0
        assert all(at <= young + HOUR for at in week.put_ms[: left[0]])
        use = week.disk.used * 100 / capacity
        assert use <= 76 or week.first_write_ms() >= young, "until that is enough"
        # Above the second: any age, but never the last segment.
        week.disk.others += capacity * 88 // 100 - week.disk.used
        week.pass_hour()
        use = week.disk.used * 100 / capacity
        assert use <= 86 or week.store.stats()["segments"] <= 2, "until that is enough"
        assert week.numbers()[0] > left[0]
        assert week.refused == 0
        # Above the third, whatever we let go: writes are refused with the reason, reading goes on.
        week.disk.others = capacity * 92 // 100
        week.pass_hour()
        assert week.refused > 0
        with pytest.raises(ReadOnlyError, match=r"9\d % of the disk is used, over 85 %"):
            week.store.put("t", b"no", queue=0)
        kept = week.numbers()
        assert kept == list(range(kept[0], len(week.put_ms)))
        # Between second and third it still refuses; at the second it takes messages again.
        week.disk.others += capacity * 88 // 100 - week.disk.used
        week.workers.run("penstock-retain")
        with pytest.raises(ReadOnlyError):
            week.store.put("t", b"not yet", queue=0)
        week.disk.others += capacity * 60 // 100 - week.disk.used
        week.workers.run("penstock-retain")
        refused = week.refused
        for _ in range(24):
            week.pass_hour()
        assert week.refused == refused
        assert week.numbers()[-1] == len(week.put_ms) - 1
        assert not list(week.store.verify())


@pytest.mark.slow
def test_reads_in_progress_never_fail(tmp_path: Path) -> None:
    """Readers that began before segments went: in order, right, and what is gone is passed over."""
    week = Week(
        tmp_path / "s", "file", retention=["size"], **{"retention.size.bytes_max": 6 * SEGMENT}
    )
    with week.store:
        readers: list[tuple[Any, list[int]]] = []
        for hour in range(rounds(gate=3, night=7) * 24):
            week.pass_hour()
            if hour % 12 == 0:
                readers.append((week.store.scan("t", queue=0), []))
            for reader, seen in readers:
                for _, message in zip(range(5), reader, strict=False):
                    number = int(message.body.partition(b":")[0])
                    assert message.body == b"%d:" % number + b"x" * 1800
                    assert not seen or number > seen[-1]
                    seen.append(number)
        assert all(seen for _, seen in readers)
