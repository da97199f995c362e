"""The end of the log being written: the next segment is there before the old one is full, or nothing counts."""

import errno
from pathlib import Path

import pytest

from penstock.contracts import Context, NoOptions
from penstock.errors import DiskFullError, SystemLimitError
from penstock.format.record import MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.log.log_tail import LogTail
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import SimulatedDisk, make_context
from penstock.testing.kit import SMALL
from penstock_alloc.file_writer import FileWriter
from penstock_alloc.on_demand import OnDemandAllocator

ROOT = Path("/store")
SIZE = SMALL.segment_bytes


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def context(disk: SimulatedDisk) -> Context:
    return make_context(ROOT, files=disk)


@pytest.fixture
def log(context: Context, disk: SimulatedDisk) -> SegmentedLog:
    return SegmentedLog(disk, ROOT / "commitlog", SIZE, mapped=True)


@pytest.fixture
def tail(context: Context, log: SegmentedLog, disk: SimulatedDisk) -> LogTail:
    writer, allocator = FileWriter(NoOptions(), context), OnDemandAllocator(NoOptions(), context)
    return LogTail(log, writer, allocator, disk)


def test_the_first_segment_begins_at_0_and_takes_what_is_written(
    tail: LogTail, log: SegmentedLog
) -> None:
    segment = tail.roll()
    tail.write(segment, b"abc")
    tail.write(segment, b"def")
    assert (segment.base_offset, log.committed_offset) == (0, 6)
    assert bytes(log.read(0, 6)) == b"abcdef"


def test_a_roll_fills_the_old_segment_with_one_blank_record(
    tail: LogTail, log: SegmentedLog
) -> None:
    tail.write(tail.roll(), b"abc")
    fresh = tail.roll()
    assert (fresh.base_offset, log.committed_offset) == (SIZE, SIZE)
    assert SIZE_AND_MAGIC.unpack(bytes(log.read(3, 8))) == (SIZE - 3, MAGIC_BLANK)
    assert [segment.base_offset for segment in tail.sealed] == [0]


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, DiskFullError), (errno.EMFILE, SystemLimitError), (errno.EIO, OSError)],
)
def test_a_segment_that_cannot_be_made_leaves_the_log_as_it_was(
    tail: LogTail, log: SegmentedLog, disk: SimulatedDisk, number: int, error: type[Exception]
) -> None:
    tail.write(tail.roll(), b"abc")
    disk.plan.fail("create", number, times=1)
    with pytest.raises(error):
        tail.roll()
    assert (len(log.segments), log.committed_offset) == (1, 3)
    assert [entry.name for entry in disk.entries(ROOT / "commitlog")] == [f"{0:020d}"]
    assert tail.roll().base_offset == SIZE


def test_a_write_without_room_does_not_count_and_the_next_goes_to_its_place(
    tail: LogTail, log: SegmentedLog, disk: SimulatedDisk
) -> None:
    segment = tail.roll()
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
    with pytest.raises(DiskFullError):
        tail.write(segment, b"abc")
    tail.write(segment, b"xy")
    assert (bytes(log.read(0, 2)), log.committed_offset) == (b"xy", 2)


def test_a_batch_of_which_a_part_was_written_is_taken_back(
    tail: LogTail, log: SegmentedLog, disk: SimulatedDisk
) -> None:
    """Whole records of it would come back at the next recovery."""
    segment = tail.roll()
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
    with pytest.raises(DiskFullError):
        tail.write_batch(segment, b"abc" * 1000, (1500, 1500))
    assert segment.is_zero()
    assert segment.wrote_position == 0


def test_appending_goes_on_where_recovery_found_the_end(
    tail: LogTail, log: SegmentedLog, disk: SimulatedDisk, context: Context
) -> None:
    tail.write(tail.roll(), b"abcdef")
    log.close()
    log.load(repair=False)
    again = LogTail(log, tail.writer, tail.allocator, disk)
    again.resume(3)
    assert again.segment is not None
    again.write(again.segment, b"xy")
    assert bytes(log.read(0, 6)) == b"abcxyf"
    again.resume(1 << 40)


def test_what_was_made_for_a_batch_and_is_not_in_the_log_is_forgotten(
    tail: LogTail, log: SegmentedLog, disk: SimulatedDisk
) -> None:
    tail.roll()
    fresh = tail.obtain(SIZE)
    assert len(disk.entries(ROOT / "commitlog")) == 2
    tail._forget(fresh)
    assert len(disk.entries(ROOT / "commitlog")) == 1
    assert tail.roll().base_offset == SIZE
