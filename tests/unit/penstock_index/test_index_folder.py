"""The folder of the hash index: names that sort by age, files of one size, a few kept open."""

from pathlib import Path

import pytest
from tests.conftest import power_cut

from penstock.testing import ManualClock, SimulatedDisk, make_context
from penstock.testing.kit import SMALL
from penstock_index.index_file import Header
from penstock_index.index_folder import IndexFolder, Readers

ROOT = Path("/store")
HEADER = Header(begin_ms=5, end_ms=7, begin_offset=1, end_offset=2, slot_count=1, index_count=2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(clock: ManualClock) -> SimulatedDisk:
    return SimulatedDisk(clock=clock)


@pytest.fixture
def folder(disk: SimulatedDisk, clock: ManualClock) -> IndexFolder:
    return IndexFolder(make_context(ROOT, files=disk, clock=clock))


def test_a_new_file_is_there_whole_after_a_power_cut(
    folder: IndexFolder, disk: SimulatedDisk
) -> None:
    assert folder.names() == []
    name = folder.make(HEADER).path.name
    assert (folder.names(), folder.known_names()) == ([name], [name])
    data = power_cut(disk).read_whole(folder.path / name)
    assert len(data) == SMALL.index_file_bytes
    assert folder.header(name) == HEADER


@pytest.mark.parametrize("step_ms", [0, 1, -3_600_000])
def test_a_later_file_has_a_later_name_whatever_the_clock_says(
    folder: IndexFolder, clock: ManualClock, step_ms: int
) -> None:
    names = list[str]()
    for _ in range(3):
        names.append(folder.make(None).path.name)
        clock.now_ms += step_ms
    assert sorted(set(names)) == names
    assert {len(name) for name in names} == {17}


def test_what_is_no_index_file_is_named_and_a_wrong_length_removed(
    folder: IndexFolder, disk: SimulatedDisk
) -> None:
    name = folder.make(None).path.name
    disk.write_whole(folder.path / "notes", b"x")
    disk.write_whole(folder.path / ("9" * 17), b"short")
    assert [path.name for path in folder.strays()] == ["9" * 17]
    left, removed = sorted(folder.remove_strays(), key=len, reverse=True)
    assert "was not changed" in left
    assert "whose length is wrong" in removed
    assert [entry.name for entry in disk.entries(folder.path)] == [name, "notes"]


def test_few_files_stay_open_and_one_that_is_gone_is_an_error(
    folder: IndexFolder, disk: SimulatedDisk, clock: ManualClock
) -> None:
    names = [folder.make(None).path.name for _ in range(4)]
    readers = Readers(disk, folder.path, SMALL, 2, mapped=False)
    for name in names:
        assert readers.get(name).path.name == name
    assert len(readers._open) == 2
    readers.close()
    folder.remove(names[0])
    folder.forget()
    assert folder.known_names() == names[1:]
    with pytest.raises(FileNotFoundError):
        readers.get(names[0])
