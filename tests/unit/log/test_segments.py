"""The log as one range of bytes over files: what is taken in, read, cut and retired, and who holds a segment."""

import errno
from pathlib import Path

import pytest

from penstock.errors import OffsetError
from penstock.format.names import segment_name
from penstock.log.segment import Lease, Readable, Segment, take
from penstock.log.segmented_log import SegmentedLog, plausible
from penstock.testing import SimulatedDisk
from penstock_alloc.writers import FileChannel

SIZE = 4096


FOLDER = Path("/log")


def log_of(*bases: int, mapped: bool = False) -> tuple[SimulatedDisk, SegmentedLog]:
    """Return a loaded log of segments, each full of its own number's byte."""
    disk = SimulatedDisk()
    disk.make_folder_durably(FOLDER)
    for base in bases:
        disk.write_whole(FOLDER / segment_name(base), bytes([base // SIZE + 1]) * SIZE)
    log = SegmentedLog(disk, FOLDER, SIZE, mapped=mapped)
    log.load(repair=False)
    return disk, log


def test_a_byte_is_found_by_its_offset_also_where_segments_are_missing() -> None:
    _, log = log_of(SIZE, 2 * SIZE, 4 * SIZE)
    found = [log.find(at) for at in (0, SIZE, 3 * SIZE - 1, 3 * SIZE, 4 * SIZE, 5 * SIZE)]
    assert [None if s is None else s.base_offset for s in found] == [
        None, SIZE, 2 * SIZE, None, 4 * SIZE, None,
    ]  # fmt: skip
    assert (log.min_offset, log.next_base(SIZE), log.next_base(4 * SIZE)) == (SIZE, 2 * SIZE, None)
    assert log.next_free_base(1) == 6 * SIZE


@pytest.mark.parametrize("mapped", [True, False])
def test_bytes_are_read_within_one_segment(mapped: bool) -> None:
    _, log = log_of(0, SIZE, mapped=mapped)
    assert bytes(log.read(SIZE - 1, 1)) == b"\1"
    assert bytes(log.read(SIZE, 2)) == b"\2\2"
    for at, size in ((SIZE - 1, 2), (2 * SIZE, 1), (-1, 1)):
        with pytest.raises(OffsetError):
            log.read(at, size)
    memory = bytearray(3)
    log.read_into([(0, memoryview(memory)[:1]), (10, memoryview(memory)[1:])])
    assert memory == b"\1\1\1"


def test_an_empty_last_segment_that_a_crash_left_is_removed_only_by_a_repair() -> None:
    disk, log = log_of(0)
    path = FOLDER / segment_name(SIZE)
    disk.write_whole(path, b"")
    assert log.load(repair=False) == []
    assert disk.exists(path)
    (text,) = log.load(repair=True)
    assert path.name in text
    assert not disk.exists(path)
    assert len(log.segments) == 1


def test_what_another_process_makes_or_takes_away_is_taken_in() -> None:
    disk, log = log_of(0, SIZE)
    kept = log.segments[1]
    disk.remove(FOLDER / segment_name(0))
    disk.write_whole(FOLDER / segment_name(2 * SIZE), b"half")
    disk.write_whole(FOLDER / "notes", b"x")
    log.refresh()
    assert [segment.base_offset for segment in log.segments] == [SIZE, 2 * SIZE]
    assert log.segments[0] is kept
    assert bytes(log.read(2 * SIZE, 6)) == b"half\0\0"


def test_a_segment_taken_away_while_it_is_read_is_told_as_out_of_range() -> None:
    disk, log = log_of(0, SIZE)
    log.read(0, 1)
    disk.remove(FOLDER / segment_name(0))
    with pytest.raises(OffsetError) as raised:
        log.read(0, 1)
    assert raised.value.low == SIZE


def test_a_cut_erases_what_is_after_it_and_keeps_what_was_asked_for() -> None:
    disk, log = log_of(0, SIZE, 2 * SIZE)
    disk.write_whole(FOLDER / segment_name(2 * SIZE), bytes(SIZE))
    disk.make_folder_durably(Path("/kept"))
    mended = log.truncate(100, Path("/kept"))
    assert [text.split()[0] for text in mended] == ["moved", "removed"]
    assert [entry.name for entry in disk.entries(Path("/kept"))] == [f"{segment_name(SIZE)}-1"]
    assert bytes(log.read(0, SIZE)) == b"\1" * 100 + bytes(SIZE - 100)
    assert (len(log.segments), log.committed_offset) == (1, 100)


def test_the_oldest_is_retired_when_nobody_holds_it_and_the_bound_moves_first() -> None:
    _, log = log_of(0, SIZE)
    with log.lease(0):
        assert log.retire_first(0, 0, 1000) is None
        assert log.min_offset == SIZE, "no caller is sent to what is about to go"
        with pytest.raises(OffsetError), log.lease(0):
            pass
    gone = log.retire_first(0, 1, 1000)
    assert gone is not None
    assert (gone.base_offset, [s.base_offset for s in log.segments]) == (0, [SIZE])


def test_counts_never_include_the_last_segment() -> None:
    _, log = log_of(0, SIZE, 2 * SIZE)
    assert [log.count_before_offset(at) for at in (SIZE - 1, SIZE, 1 << 60)] == [0, 1, 2]
    written = log.segments[0].last_write_ms()
    assert [log.count_before_time(at) for at in (written, written + 1)] == [0, 2]


def test_a_segment_that_is_not_there_any_more_is_an_error_when_looked_for() -> None:
    disk, log = log_of(0)
    log.check_there()
    disk.remove(FOLDER / segment_name(0))
    with pytest.raises(OSError, match="was removed") as raised:
        log.check_there()
    assert raised.value.errno == errno.ENOENT


def test_times_that_cannot_be_true_are_those_of_the_neighbours() -> None:
    year_2020 = 1_577_836_800_000
    assert plausible([5, year_2020, year_2020 - 10]) == [year_2020] * 3
    assert plausible([]) == []


# --- one segment


CAPACITY = 64 * 1024
PATH = FOLDER / segment_name(CAPACITY)


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
    segment.flushed_to(106)
    assert (segment.channel, segment.end_offset) == (channel, 2 * CAPACITY)
    segment.flushed_to(CAPACITY)
    assert segment.channel is None
    assert bytes(segment.view()[100:106]) == b"abcdef"


def test_of_many_open_segments_the_oldest_is_closed(disk: SimulatedDisk) -> None:
    readable, made = Readable(2), list[Segment]()
    for number in range(3):
        path = FOLDER / str(number)
        disk.write_whole(path, b"x" * CAPACITY)
        made.append(Segment(disk, path, number * CAPACITY, CAPACITY, readable))
        made[-1].pread(1, 0)
    opens = disk.plan.counts["open"]
    assert made[2].pread(1, 0) == made[1].pread(1, 0) == b"x"
    assert disk.plan.counts["open"] == opens
    assert made[0].pread(1, 0) == b"x"
    assert disk.plan.counts["open"] == opens + 1
