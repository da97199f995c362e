"""Delivery times of delay levels that only a broker knows: they are kept, and are no findings; corrupt ones are."""

from pathlib import Path

import numpy as np

import penstock
from penstock import Store
from penstock.testing import ManualClock, ManualWorkers, open_store
from penstock_index.queue_delays import SCHEDULE_TOPIC, are_delivery_times

HOUR_MS = 3_600_000


def test_whole_seconds_up_to_a_year_can_be_a_level() -> None:
    delays = [0, 1000, 3 * HOUR_MS, 366 * 24 * HOUR_MS]
    stored = np.full(len(delays), 1_700_000_000_123, np.int64)
    assert are_delivery_times(stored + delays, stored).all()
    bad = [-1000, 1, 999, 1001, 367 * 24 * HOUR_MS, -(1 << 62)]
    stored = np.full(len(bad), 1_700_000_000_123, np.int64)
    assert not are_delivery_times(stored + bad, stored).any()
    # No bit of a time can flip unseen.
    time = 1_700_000_030_123
    flipped = np.array([np.int64(np.uint64(time) ^ np.uint64(1 << bit)) for bit in range(64)])
    assert not are_delivery_times(flipped, np.full(64, 1_700_000_000_123, np.int64)).any()


def opened(root: Path) -> Store:
    return open_store(root, clock=ManualClock(1_700_000_000_000), spawn=ManualWorkers())


def entries(root: Path) -> Path:
    (path,) = (root / "consumequeue" / SCHEDULE_TOPIC / "3").iterdir()
    return path


def change(root: Path, row: int, by_ms: int) -> None:
    data = bytearray(entries(root).read_bytes())
    at = slice(row * 20 + 12, row * 20 + 20)
    data[at] = (int.from_bytes(data[at], "big") + by_ms).to_bytes(8, "big")
    entries(root).write_bytes(data)


def texts(root: Path) -> list[str]:
    with penstock.open(root, environ={}, read_only=True) as store:
        return [finding.text for finding in store.verify(deep=True) if not finding.is_note]


def test_an_opening_keeps_the_time_of_a_brokers_level(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(3):
            store.put("orders", b"%d" % number, delay_level=4)
    change(tmp_path, 1, HOUR_MS)
    before = entries(tmp_path).read_bytes()
    assert texts(tmp_path) == []
    # As if a broker had written since: everything is dispatched again.
    (tmp_path / "penstock" / "clean").unlink()
    with opened(tmp_path) as store:
        store.put("orders", b"3", delay_level=4)
    assert entries(tmp_path).read_bytes()[:60] == before[:60]
    change(tmp_path, 2, HOUR_MS + 1)
    assert texts(tmp_path) == [f"queue {SCHEDULE_TOPIC}/3 offset 2: the entry has another tag code"]


def test_a_time_that_cannot_be_right_is_made_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(3):
            store.put("orders", b"%d" % number, delay_level=4)
    before = entries(tmp_path).read_bytes()
    change(tmp_path, 1, 1)
    (tmp_path / "penstock" / "clean").unlink()
    with opened(tmp_path):
        pass
    assert entries(tmp_path).read_bytes()[:60] == before[:60]
