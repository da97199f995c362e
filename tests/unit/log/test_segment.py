"""One segment: who may hold it, what is read of it, and what nobody wrote."""

from pathlib import Path

import pytest

from penstock.errors import OffsetError
from penstock.log.segment import Lease, Readable, Segment, lends, take
from penstock.testing import SimulatedDisk
from penstock_alloc.file_writer import FileChannel, GatheringChannel

CAPACITY = 64 * 1024
FOLDER = Path("/log")
PATH = FOLDER / f"{CAPACITY:020d}"


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder_durably(FOLDER)
    return made


@pytest.fixture
def segment(disk: SimulatedDisk) -> Segment:
    file = disk.create(PATH)
    file.resize(CAPACITY)
    file.pwrite(b"abc", 100)
    file.close()
    return Segment(disk, PATH, CAPACITY, CAPACITY)


def test_a_retired_lease_ends_when_the_last_hold_is_back() -> None:
    lease = Lease()
    assert lease.hold()
    assert not lease.retire(0, 100)
    assert not lease.hold()
    assert not lease.retire(99, 100)
    lease.release()
    assert lease.retire(99, 100)
    assert (lease.is_over, lease.was_forced) == (True, False)


def test_holders_are_passed_over_after_the_interval_and_come_back_late() -> None:
    lease = Lease()
    assert lease.hold()
    lease.retire(1000, 100)
    assert lease.retire(1100, 100)
    assert lease.was_forced
    lease.release()
    assert lease.is_over
    assert not lease.hold()


def test_a_method_that_a_subclass_puts_over_what_is_lent_is_not_passed_by() -> None:
    class Watched(FileChannel):
        def flush(self) -> None:
            super().flush()

    assert lends(FileChannel, "descriptor", "commit", "flush")
    assert lends(GatheringChannel, "descriptor", "commit", "flush")
    assert not lends(Watched, "descriptor", "commit", "flush")


@pytest.mark.parametrize("mapped", [True, False])
def test_bytes_within_a_segment_are_read_and_others_refused(segment: Segment, mapped: bool) -> None:
    assert bytes(take(segment, 99, 5, mapped=mapped)) == b"\0abc\0"
    assert bytes(take(segment, CAPACITY - 2, 2, mapped=mapped)) == b"\0\0"
    for position, size in ((-1, 1), (0, -1), (CAPACITY, 1), (0, CAPACITY + 1)):
        with pytest.raises(OffsetError):
            take(segment, position, size, mapped=mapped)
    for position in (0, 103, CAPACITY // 2, CAPACITY):
        assert len(take(segment, position, 0, mapped=mapped)) == 0


def test_a_file_that_was_cut_short_reads_as_zeros_behind_its_end(
    disk: SimulatedDisk, segment: Segment
) -> None:
    disk.open(PATH, writable=True).resize(102)
    assert take(segment, 100, 5, mapped=False) == b"ab\0\0\0"
    assert segment.has(100, 2)
    assert not segment.has(100, 3)
    memory = bytearray(b"?" * 4)
    segment.read_into([(100, memoryview(memory))])
    assert memory == b"ab\0\0"


def test_a_file_that_lost_its_name_is_gone_whatever_it_still_says(
    disk: SimulatedDisk, segment: Segment
) -> None:
    """A recycled file is renamed before its bytes are overwritten."""
    assert segment.pread(3, 100) == b"abc"
    disk.rename(PATH, FOLDER / "spare")
    with pytest.raises(FileNotFoundError):
        segment.pread(3, 100)


def test_what_lies_after_a_position_is_erased_durably(
    disk: SimulatedDisk, segment: Segment
) -> None:
    assert not segment.is_zero()
    segment.erase(101)
    assert segment.pread(3, 100) == b"a\0\0"
    segment.erase(0)
    assert segment.is_zero()


def test_positions_follow_a_channel_and_a_seal_leaves_it_readable(
    disk: SimulatedDisk, segment: Segment
) -> None:
    channel = FileChannel(disk.open(PATH, writable=True), CAPACITY)
    segment.start_writing(channel, 103, commits_at_once=True)
    channel.write(103, b"def")
    segment.wrote_position = segment.committed_position = 106
    assert segment.flushed_position == 103
    segment.flush()
    assert (segment.flushed_position, segment.end_offset) == (106, 2 * CAPACITY)
    segment.seal()
    assert segment.channel is None
    assert bytes(segment.view()[100:106]) == b"abcdef"


def test_of_many_open_segments_the_oldest_is_closed(disk: SimulatedDisk) -> None:
    readable = Readable(2)
    made = []
    for number in range(3):
        path = FOLDER / str(number)
        disk.write_whole(path, b"x" * CAPACITY)
        made.append(Segment(disk, path, number * CAPACITY, CAPACITY, readable))
        made[-1].pread(1, 0)
    assert [segment._file is None for segment in made] == [True, False, False]
    assert made[0].pread(1, 0) == b"x"
