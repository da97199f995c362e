"""A new file appears whole and durable under its name, or not at all."""

import errno
from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.files import File
from penstock.testing import SimulatedDisk, make_context
from penstock_alloc.fresh import make_file, remove_file

ROOT = Path("/store")
PATH = ROOT / "commitlog" / "0"


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    make_context(ROOT, files=made)
    return made


def names(disk: SimulatedDisk) -> list[str]:
    return [entry.name for part in ("commitlog", "penstock") for entry in disk.entries(ROOT / part)]


@pytest.mark.parametrize("allocated", [True, False])
def test_a_file_is_there_whole_after_a_power_cut(disk: SimulatedDisk, allocated: bool) -> None:
    file = make_file(disk, ROOT, PATH, 8192, allocated=allocated)
    assert file.path == PATH
    file.pwrite(b"x", 0)
    crashed = power_cut(disk)
    assert crashed.read_whole(PATH) == bytes(8192)
    assert names(crashed) == ["0"]


@pytest.mark.parametrize("call", ["create", "allocate", "sync", "rename", "sync_folder"])
def test_whatever_fails_leaves_nothing(disk: SimulatedDisk, call: str) -> None:
    disk.plan.fail(call, errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        make_file(disk, ROOT, PATH, 8192, allocated=True)
    assert names(disk) == []
    make_file(disk, ROOT, PATH, 8192, allocated=True)


def test_what_a_crash_left_half_made_is_begun_anew(disk: SimulatedDisk) -> None:
    disk.write_whole(ROOT / "penstock" / "new-0", b"half")
    assert make_file(disk, ROOT, PATH, 8192, allocated=False).pread(4, 0) == bytes(4)
    assert names(disk) == ["0"]


def test_it_is_prepared_before_it_has_its_name(disk: SimulatedDisk) -> None:
    def prepare(file: File) -> None:
        assert not disk.exists(PATH)
        file.pwrite(b"abc", 0)

    make_file(disk, ROOT, PATH, 8192, allocated=False, prepare=prepare)
    assert power_cut(disk).read_whole(PATH)[:3] == b"abc"


def test_a_removed_file_stays_removed(disk: SimulatedDisk) -> None:
    make_file(disk, ROOT, PATH, 8192, allocated=False)
    remove_file(disk, PATH)
    assert names(power_cut(disk)) == []
