"""The first keys of an index file: written piece by piece, and not there after a write that failed."""

import errno
from pathlib import Path

import numpy as np
import pytest

from penstock.contracts import Geometry, find_in_index_file
from penstock.files import File
from penstock.format.text_columns import Keys
from penstock.testing import SimulatedDisk
from penstock_index.index_draft import Draft, draft_entries

GEOMETRY = Geometry(index_slots=8192, index_entries=100)
PATH = Path("/index")


def file_of(disk: SimulatedDisk) -> File:
    file = disk.create(PATH)
    file.resize(GEOMETRY.index_file_bytes)
    return file


def keys(*hashes: int) -> tuple[Keys, np.ndarray, np.ndarray]:
    count = len(hashes)
    return Keys(np.arange(count), np.array(hashes, np.int32)), np.arange(count) * 100, np.full(count, 5000)  # fmt: skip


def found(disk: SimulatedDisk, hashed: int) -> list[int]:
    return list(find_in_index_file(disk.read_whole(PATH), GEOMETRY, hashed, 0, 1 << 60))


def test_few_keys_are_written_so_and_no_more_than_pages_of_slots() -> None:
    assert draft_entries(GEOMETRY) == 8
    assert draft_entries(Geometry(index_slots=1 << 20, index_entries=50)) == 50


def test_keys_that_were_added_are_in_the_file() -> None:
    disk = SimulatedDisk()
    draft = Draft(file_of(disk), GEOMETRY)
    assert draft.add(1, *keys(7, 9, 7), 0) == 3
    assert (found(disk, 7), found(disk, 9), found(disk, 8)) == ([200, 0], [100], [])
    assert disk.read_whole(PATH)[:40] == draft.header


@pytest.mark.parametrize("after", [0, 1, 2])
def test_keys_whose_write_failed_do_not_count_and_may_be_added_again(after: int) -> None:
    disk = SimulatedDisk()
    draft = Draft(file_of(disk), GEOMETRY)
    draft.add(1, *keys(7), 0)
    header = draft.header
    disk.plan.fail("pwrite", errno.EIO, after=after, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        draft.add(2, *keys(9), 0)
    assert draft.header == header
    assert found(disk, 7) == [0]
    draft.add(2, *keys(9), 0)
    assert (found(disk, 9), found(disk, 7)) == ([0], [0])


def test_a_draft_goes_on_from_what_the_file_has() -> None:
    disk = SimulatedDisk()
    file = file_of(disk)
    Draft(file, GEOMETRY).add(1, *keys(7), 0)
    Draft(file, GEOMETRY).add(2, *keys(7), 0)
    assert found(disk, 7) == [0, 0]
