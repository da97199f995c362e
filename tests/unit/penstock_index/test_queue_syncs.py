"""Files and folders made durable: one by one, or all of a file system at once."""

from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.testing import SimulatedDisk
from penstock_index.queue_files import OpenFiles
from penstock_index.queue_syncs import Syncs

FOLDER = Path("/q")


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(FOLDER)
    return made


def written(disk: SimulatedDisk, count: int) -> list[Path]:
    paths = [FOLDER / str(number) for number in range(count)]
    for path in paths:
        disk.create(path).pwrite(b"x", 0)
    return paths


def syncs(disk: SimulatedDisk, volume_from: int) -> Syncs:
    made = Syncs(disk, OpenFiles(disk, 10), volume_from)
    made.begin(FOLDER)
    return made


@pytest.mark.parametrize(("volume_from", "together"), [(0, 0), (4, 1), (5, 0)])
def test_so_many_are_synced_together_and_all_are_durable(
    disk: SimulatedDisk, volume_from: int, together: int
) -> None:
    paths = written(disk, 3)
    syncs(disk, volume_from).sync(paths, [FOLDER])
    assert disk.plan.counts.get("sync_volume", 0) == together
    assert all(power_cut(disk).read_whole(path) == b"x" for path in paths)


def test_the_last_file_is_synced_by_itself_for_the_disks_own_cache(disk: SimulatedDisk) -> None:
    paths = written(disk, 3)
    before = disk.plan.counts.get("sync", 0)
    syncs(disk, 1).sync(paths, [FOLDER])
    assert disk.plan.counts["sync"] == before + 1


def test_a_file_that_is_gone_needs_no_sync(disk: SimulatedDisk) -> None:
    paths = written(disk, 2)
    disk.remove(paths[0])
    syncs(disk, 0).sync(paths, [])


@pytest.mark.parametrize("volume_from", [0, 1])
def test_a_folder_that_is_gone_needs_no_sync(disk: SimulatedDisk, volume_from: int) -> None:
    gone = FOLDER / "topic"
    disk.make_folder(gone)
    path = gone / "0"
    disk.create(path).pwrite(b"x", 0)
    made = syncs(disk, volume_from)
    disk.remove(path)
    disk.remove_folder(gone)
    made.sync([path], [gone, FOLDER])


@pytest.mark.parametrize(("call", "volume_from"), [("sync", 0), ("sync_volume", 1), ("sync_folder", 0)])  # fmt: skip
def test_what_fails_is_an_error(disk: SimulatedDisk, call: str, volume_from: int) -> None:
    paths, made = written(disk, 2), syncs(disk, volume_from)
    disk.plan.fail(call, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        made.sync(paths, [FOLDER])
    made.close()
