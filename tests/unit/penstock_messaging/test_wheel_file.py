"""The timer wheel: slots by second, and what differs from what it should say."""

from pathlib import Path

import numpy as np
import pytest

from penstock.files import Files
from penstock.format.arrays import Structs
from penstock.testing.faults import FaultyFiles
from penstock_messaging.timers.unit_chains import empty_slots
from penstock_messaging.timers.wheel_file import NO_UNIT, SLOT_BYTES, WheelFile

SLOTS = 50


def slots(*seconds: int, last: int = 7) -> Structs:
    found = empty_slots(np.array(seconds, np.int64) * 1000)
    found["first"], found["last"], found["count"] = 3, last, 1
    return found


def test_slots_are_read_as_they_were_written(tmp_path: Path) -> None:
    wheel = WheelFile(Files(), tmp_path, SLOTS)
    wheel.write(slots(100, 101, 149, 120))
    assert (tmp_path / "timerwheel").stat().st_size == SLOTS * SLOT_BYTES
    found = empty_slots(np.array([101, 149, 150, 151], np.int64) * 1000)
    wheel.read(found)
    assert found["last"].tolist() == [7, 7, NO_UNIT, NO_UNIT], "151 has the slot of 101"


def test_without_a_file_every_slot_is_empty(tmp_path: Path) -> None:
    wheel = WheelFile(Files(), tmp_path, SLOTS)
    found = empty_slots(np.array([5000], np.int64))
    wheel.read(found)
    assert found["last"].tolist() == [NO_UNIT]
    wheel.clear()
    assert not (tmp_path / "timerwheel").exists()
    assert wheel.differing(found, 0) is None


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    wheel = WheelFile(Files(), tmp_path, SLOTS)
    wheel.write(slots(90, 100, 101, 130))
    wanted = np.concatenate((slots(100), slots(101, last=8)), dtype=slots(1).dtype)
    found = wheel.differing(wanted, 100)
    assert found is not None
    assert found["second"].tolist() == [101, 130], "90 is over, and 130 has no unit"
    wheel.write(found)
    assert wheel.differing(wanted, 100).tolist() == []  # type: ignore[union-attr]  # there is a file
    left = empty_slots(np.array([90, 101, 130], np.int64) * 1000)
    wheel.read(left)
    assert left["last"].tolist() == [7, 8, NO_UNIT]


def test_a_file_of_another_length_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(b"abc")
    wheel = WheelFile(Files(), tmp_path, SLOTS)
    assert wheel.differing(slots(1), 0) is None
    wheel.write(slots(1))
    assert wheel.differing(slots(1), 0).tolist() == []  # type: ignore[union-attr]  # there is a file
    wheel.clear()
    assert (tmp_path / "timerwheel").read_bytes() == bytes(SLOTS * SLOT_BYTES)


def test_a_name_that_was_not_made_durable_is_made_so_by_the_next_write(tmp_path: Path) -> None:
    files = FaultyFiles()
    wheel = WheelFile(files, tmp_path, SLOTS)
    files.plan.fail("sync_folder", times=1)
    with pytest.raises(OSError, match="Input/output"):
        wheel.write(slots(1))
    before = files.plan.counts["sync_folder"]
    for _ in range(3):
        wheel.write(slots(1))
    assert files.plan.counts["sync_folder"] == before + 1
