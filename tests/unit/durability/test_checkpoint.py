"""RocketMQ's checkpoint file: three times, whatever the file looks like."""

import struct
from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.durability.checkpoint import CHECKPOINT_BYTES, Checkpoint, Times
from penstock.testing import SimulatedDisk

ROOT = Path("/store")
PATH = ROOT / "checkpoint"


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(ROOT)
    return made


def test_what_is_written_is_read_at_javas_places(disk: SimulatedDisk) -> None:
    Checkpoint(disk, ROOT).write(Times(3, 2, 1))
    assert Checkpoint(disk, ROOT).read() == Times(3, 2, 1)
    data = disk.read_whole(PATH)
    assert struct.unpack(">qqqqq", data[:40]) == (3, 2, 1, 0, 0)
    assert data[40:] == bytes(CHECKPOINT_BYTES - 40)


def test_what_is_written_survives_a_power_cut(disk: SimulatedDisk) -> None:
    checkpoint = Checkpoint(disk, ROOT)
    checkpoint.write(Times(1, 1, 1))
    checkpoint.write(Times(5, 5, 5))
    assert Checkpoint(power_cut(disk), ROOT).read() == Times(5, 5, 5)


def test_where_there_is_none_or_half_a_one_no_time_is_known(disk: SimulatedDisk) -> None:
    assert Checkpoint(disk, ROOT).read() == Times()
    disk.write_whole(PATH, struct.pack(">qqqq", 1, 2, 3, 4))
    assert Checkpoint(disk, ROOT).read() == Times()


def test_a_negative_time_is_not_known(disk: SimulatedDisk) -> None:
    disk.write_whole(PATH, struct.pack(">qqqqq", -5, 7, -1, 0, 0))
    assert Checkpoint(disk, ROOT).read() == Times(0, 7, 0)


def test_a_short_file_gets_its_length_back(disk: SimulatedDisk) -> None:
    disk.write_whole(PATH, b"x")
    Checkpoint(disk, ROOT).write(Times(1, 2, 3))
    assert len(disk.read_whole(PATH)) == CHECKPOINT_BYTES
    assert Checkpoint(disk, ROOT).read() == Times(1, 2, 3)


def test_a_file_that_is_there_is_written_in_place(disk: SimulatedDisk) -> None:
    """What follows the times stays, and no crash leaves a file without any."""
    disk.write_whole(PATH, bytes(CHECKPOINT_BYTES - 1) + b"x")
    seen: list[str] = []
    disk.plan.watch = lambda call, path: seen.append(call)
    Checkpoint(disk, ROOT).write(Times(1, 2, 3))
    assert seen == ["pwrite", "sync"]
    assert disk.read_whole(PATH)[-1:] == b"x"
