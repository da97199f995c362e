"""One queue: where it begins and ends, found from its files, noted, and confirmed by them."""

from pathlib import Path

import numpy as np
import pytest

from penstock.testing import SimulatedDisk
from penstock_index.queue_extension import QueueExtension
from penstock_index.queue_files import ENTRY, OpenFiles, QueueFolder
from penstock_index.queue_state import Queue
from penstock_index.queue_summary import ClosedQueue

PER_FILE = 10
PATH = Path("/q/t/0")


@pytest.fixture
def queue() -> Queue:
    """Return a queue of 15 entries in two files, each of 100 bytes of log."""
    disk = SimulatedDisk()
    disk.make_folder_durably(PATH)
    for base in (0, 10):
        rows = np.zeros(PER_FILE, ENTRY)
        numbers = np.arange(PER_FILE) + base
        rows["log_offset"], rows["size"] = np.where(numbers < 15, numbers * 100, 0), np.where(numbers < 15, 100, 0)  # fmt: skip
        disk.write_whole(PATH / f"{20 * base:020d}", rows.tobytes())
    pool = OpenFiles(disk, 4)
    made = Queue(QueueFolder(disk, pool, PATH, PER_FILE), QueueExtension(disk, pool, Path("/e")), 0, 0)  # fmt: skip
    list(made.folder.scan(cut_too=False))
    return made


def test_its_bounds_are_found_in_its_files(queue: Queue) -> None:
    queue.find_bounds(0)
    assert (queue.min_offset, queue.max_offset, queue.reach()) == (0, 15, 1400)
    queue.find_bounds(750)
    assert (queue.min_offset, queue.max_offset) == (8, 15)


def test_leading_files_go_when_their_records_have_gone(queue: Queue) -> None:
    queue.find_bounds(0)
    assert not queue.trim(900)
    assert queue.trim(1000)
    assert (queue.min_offset, list(queue.folder.bases)) == (10, [10])
    assert not queue.trim(1 << 40)
    assert list(queue.folder.bases) == [10], "the last file stays"


def test_what_was_noted_is_confirmed_by_files_that_say_nothing_else(queue: Queue) -> None:
    queue.find_bounds(0)
    noted = queue.known()
    assert noted == ClosedQueue((0, 10), 0, 15, 1400)
    assert queue.confirm(noted, 0)
    for wrong in (noted._replace(max_offset=14), noted._replace(max_offset=16), noted._replace(last=1300), noted._replace(min_offset=1)):  # fmt: skip
        assert not queue.confirm(wrong, 0)


def test_entries_are_gone_through_from_any_place(queue: Queue) -> None:
    queue.find_bounds(0)
    assert list(queue.present(13)) == [(13, 1300), (14, 1400)]
    assert queue.next_entry(9) == (9, 900)
    assert queue.next_entry(15)[0] == 15


def test_entries_that_were_added_are_taken_in_without_listing_the_folder(queue: Queue) -> None:
    queue.find_bounds(0)
    rows = np.array([(1500, 100, 0), (1600, 100, 0)], ENTRY)
    list(queue.folder.write(15, rows.tobytes()))
    assert queue.add_appended(0)
    assert queue.max_offset == 17
    assert not queue.add_appended(99_999), "its head has gone: look again"
