"""From a path to a store: what is looked at first, what is refused, and who still holds it afterwards."""

import errno
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, NotAStoreError, StoreLockedError
from penstock.store.open import open_store
from penstock.testing import ManualWorkers, SimulatedDisk
from penstock.testing.kit import SMALL

ROOT = Path("/store")
SIZES: dict[str, Any] = {
    "geometry.segment_bytes": SMALL.segment_bytes,
    "geometry.queue_entries": 200,
}


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_reading_makes_nothing(disk: SimulatedDisk) -> None:
    with pytest.raises(NotAStoreError):
        open_store(ROOT, files=disk, environ={}, read_only=True)
    assert disk.plan.total == 0


def test_a_wrong_setting_is_refused_before_anything_is_touched(disk: SimulatedDisk) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"flush": "none-such"},
        {"log.none": 1},
        {"index.use": []},
    )
    for settings in refused:
        with pytest.raises(ConfigError):
            open_store(ROOT, files=disk, environ={}, **settings)
    assert not disk.exists(ROOT)


def test_a_second_writer_is_refused_and_a_reader_is_not(disk: SimulatedDisk) -> None:
    with open_store(ROOT, files=disk, spawn=ManualWorkers(), environ={}, **SIZES) as store:
        store.put("t", b"x")
        store.flush()
        with pytest.raises(StoreLockedError, match=f"process {disk.process_id()}"):
            open_store(ROOT, files=disk, environ={})
        with open_store(ROOT, files=disk, environ={}, read_only=True) as reader:
            assert reader.recovery is None


@pytest.mark.parametrize("call", ["create", "sync", "rename", "make_folder"])
def test_an_opening_that_fails_lets_go_of_the_store(disk: SimulatedDisk, call: str) -> None:
    disk.plan.fail(call, errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        open_store(ROOT, files=disk, spawn=ManualWorkers(), environ={}, **SIZES)
    with open_store(ROOT, files=disk, spawn=ManualWorkers(), environ={}, **SIZES) as store:
        store.put("t", b"x")
