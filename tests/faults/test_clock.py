"""Clocks that jump: store times never decrease, one bad time deletes nothing, searches stay right."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtime.test_workers import TwoClocks

from penstock import Message
from penstock.runtime.clock import BELIEVED_AFTER_MS
from penstock.testing import ManualClock, ManualWorkers, open_store

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
START = 1_700_000_000_000
JUMPS = {
    "back an hour": [START, START - HOUR, START - HOUR + 5],
    "forward ten years and back": [START, START + 10 * YEAR, START + 1000],
    "1970": [START, 0, 5, START + 10],
    "from 1970": [0, 5, START, START + 5],
    "stands still": [START] * 4,
    "beyond 2^41": [START, (1 << 41) + 5, (1 << 41) + 9],
    "1970 to beyond 2^41": [7, (1 << 41) + 5, (1 << 42)],
    "far beyond, in seconds over an int": [1000, 1 << 45, 5],
    "before 1970": [START, -5, START + 1],
}


@pytest.mark.parametrize("jump", JUMPS)
def test_store_times_never_decrease_and_searches_by_time_stay_right(
    jump: str, tmp_path: Path
) -> None:
    """A message stored 68 years after its index file's first one, or in a file that began in 1970, was not
    found when its time was asked for."""
    clock = ManualClock(JUMPS[jump][0])
    settings: dict[str, Any] = {"retention": []}
    path = tmp_path / "s"
    stored: list[int] = []
    for _ in range(2):
        with open_store(path, clock=clock, spawn=ManualWorkers(), **settings) as store:
            for now in JUMPS[jump]:
                clock.now_ms = now
                for _ in range(3):
                    receipt = store.put(
                        "t", b"%d" % len(stored), queue=0, keys=["k", f"k{len(stored)}"]
                    )
                    stored.append(receipt.store_time_ms)
                clock.now_ms += 3
                stored.extend(r.store_time_ms for r in store.put_many([_message(len(stored))]))
            assert stored == sorted(stored), "in the log time does not go back"
            assert [m.store_time_ms for m in store.scan("t")] == stored
            for time_ms in {stored[0] - 1, *stored, stored[-1] + 1}:
                first = sum(1 for each in stored if each < time_ms)
                last = max(sum(1 for each in stored if each <= time_ms) - 1, 0)
                assert store.offset_at("t", 0, time_ms / 1000) == first
                assert store.offset_at("t", 0, time_ms / 1000, boundary="upper") == last
            for number, time_ms in enumerate(stored):
                found = store.find(f"k{number}", "t", since=time_ms / 1000, until=time_ms / 1000)
                assert [m.body for m in found] == [b"%d" % number], (number, time_ms)
            low, high = stored[3], stored[-2]
            wanted = [b"%d" % n for n, t in enumerate(stored) if low <= t <= high]
            assert [m.body for m in store.find("k", "t", since=low / 1000, until=high / 1000, limit=999)] == wanted  # fmt: skip
            assert not list(store.verify())


def _message(number: int) -> Message:
    return Message("t", b"%d" % number, queue=0, keys=["k", f"k{number}"])


def test_a_clock_that_jumps_forward_and_back_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One round at a moment when the clock said ten years later once let ten segments go."""
    clock, workers = TwoClocks(START), ManualWorkers()
    settings: dict[str, Any] = {
        "retention": ["age"],
        "retention.age.delete_when": "*",
        "retention.pause_ms": 0,
    }
    with open_store(tmp_path / "s", clock=clock, spawn=workers, **settings) as store:
        for _ in range(20):
            store.put("t", b"x" * 40_000, queue=0)
        store.flush()
        for segment in (tmp_path / "s" / "commitlog").iterdir():
            os.utime(segment, ns=(START * 10**6, START * 10**6))
        count = store.stats()["segments"]
        workers.run("penstock-retain")
        for jump in (10 * YEAR, 5 * 24 * HOUR, -20 * YEAR):
            for ahead_ms in [jump] * 5 + [0]:
                clock.ahead_ms = ahead_ms
                clock.now_ms += 10_000
                workers.run("penstock-retain")
            assert store.stats()["segments"] == count
        assert caplog.text.count("the clock has jumped") == 3
        clock.ahead_ms = YEAR
        workers.run("penstock-retain")
        assert store.stats()["segments"] == count
        clock.now_ms += BELIEVED_AFTER_MS
        workers.run("penstock-retain")
        assert store.stats()["segments"] < count, "a clock that keeps to it is believed at last"


@pytest.mark.parametrize("write", ["mmap", "file"])
@pytest.mark.parametrize("counts", list(itertools.product([1, 3, 100], repeat=2)))
def test_no_way_in_goes_back_behind_what_another_stamped(
    counts: tuple[int, int], write: str, tmp_path: Path
) -> None:
    """One record, a few, or many: whoever came before, and whoever comes after."""
    clock, stamped = ManualClock(START), list[int]()
    with open_store(tmp_path / "s", clock=clock, spawn=ManualWorkers(), write=write) as store:
        for turn in range(4):
            clock.now_ms = START - turn * HOUR + turn % 2 * YEAR
            count = counts[turn % 2]
            if count == 1:
                stamped.append(store.put("t", b"x", queue=0).store_time_ms)
            else:
                stamped += {r.store_time_ms for r in store.put_many([_message(0)] * count)}
        assert stamped == [START, *[START - HOUR + YEAR] * 3]
        assert not list(store.verify())
