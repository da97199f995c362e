"""The files of one queue: entries by their ordinal, across files, and few open at a time."""

from pathlib import Path

import numpy as np
import pytest

from penstock.testing import SimulatedDisk
from penstock_index.queue_files import (
    ENTRY,
    PRE_BLANK,
    OpenFiles,
    QueueFolder,
    effective,
    is_whole_name,
)

PER_FILE = 10
FOLDER = Path("/q/t/0")


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(FOLDER)
    for base in (0, 10, 30):
        rows = np.zeros(PER_FILE, ENTRY)
        rows["log_offset"], rows["size"] = (np.arange(PER_FILE) + base) * 100, 100
        if base == 30:
            rows[5:] = 0
        made.write_whole(FOLDER / f"{20 * base:020d}", rows.tobytes())
    return made


@pytest.fixture
def folder(disk: SimulatedDisk) -> QueueFolder:
    made = QueueFolder(disk, OpenFiles(disk, 4), FOLDER, PER_FILE)
    list(made.scan(cut_too=False))
    return made


def test_entries_are_read_across_files_up_to_a_missing_one(folder: QueueFolder) -> None:
    assert list(folder.bases) == [0, 10, 30]
    assert folder.read(8, 13)["log_offset"].tolist() == [800, 900, 1000, 1100, 1200]
    assert len(folder.read(18, 25)) == 2
    assert len(folder.read(22, 25)) == 0


def test_a_file_that_ends_within_an_entry_is_read_up_to_it(
    disk: SimulatedDisk, folder: QueueFolder
) -> None:
    """Another process may be making it, or a copy of it was cut short."""
    path = FOLDER / f"{20 * 10:020d}"
    disk.write_whole(path, disk.read_whole(path)[: 20 * 2 + 7])
    assert folder.read(10, 13)["log_offset"].tolist() == [1000, 1100]
    assert len(folder.read(12, 13)) == 0


def test_the_end_is_after_the_last_entry_that_is_present(folder: QueueFolder) -> None:
    assert folder.scan_end() == 35
    assert folder.is_absent(35)
    assert not folder.is_absent(34)
    assert (folder.place(34), folder.place(35)) == (3400, -1)


def test_the_first_entry_of_a_log_offset_is_found(folder: QueueFolder) -> None:
    assert [folder.first_from(at, 0, 20) for at in (0, 1, 950, 1000, 99_999)] == [0, 1, 10, 10, 20]


def test_what_stands_for_a_record_that_is_gone_leads_nowhere() -> None:
    rows = np.concatenate([np.array([(7, 100, 0), (0, 0, 0)], ENTRY), np.frombuffer(PRE_BLANK, ENTRY)])  # fmt: skip
    assert effective(rows).tolist() == [7, -1, -1]


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("0", True), (f"{200:020d}", True), (f"{201:020d}", False), ("", False), ("-200", False), ("\u0662", False),
        ("x", False), (str((1 << 63) - 1 - ((1 << 63) - 1) % 200), True), (str(200 << 61), False),
    ],
)  # fmt: skip
def test_a_queue_file_has_a_number_that_is_a_multiple_of_its_size(
    name: str, is_right: bool
) -> None:
    assert is_whole_name(name, 200) == is_right
    assert is_whole_name(str((1 << 63) - 1), 1)
    assert not is_whole_name(str(1 << 63), 1)


@pytest.mark.parametrize(
    ("ordinal", "bases", "left", "touched"),
    [
        (35, [0, 10, 30], list(range(30, 35)), [30]), (30, [0, 10], [], [30]), (31, [0, 10, 30], [30], [30]),
        (10, [0], [], [10, 30]), (9, [0], [], [0, 10, 30]), (0, [0], [], [0, 10, 30]), (20, [0, 10], [], [30]),
        (40, [0, 10, 30], list(range(30, 35)), []),
    ],
)  # fmt: skip
def test_a_cut_erases_the_entries_after_it_and_removes_files_but_the_first(
    folder: QueueFolder, ordinal: int, bases: list[int], left: list[int], touched: list[int]
) -> None:
    assert [int(path.name) // 20 for path in folder.cut(ordinal)] == touched
    assert list(folder.bases) == bases
    present = effective(folder.read_padded(0, 40))
    assert [n for n in range(40) if n >= 30 and present[n] >= 0] == left
    assert [n for n in range(20) if present[n] >= 0] == list(range(min(ordinal, 20)))


def test_entries_of_files_that_are_missing_read_as_zeros(folder: QueueFolder) -> None:
    found = folder.read_padded(8, 32)
    assert len(found) == 24
    assert effective(found).tolist() == [*range(800, 2000, 100), *[-1] * 10, 3000, 3100]
    assert len(folder.read_padded(19, 20)) == 1
