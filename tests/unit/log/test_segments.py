"""The log as one range of bytes over files: what is taken in, read, cut and retired, and who holds a segment."""

import errno
from pathlib import Path

import pytest

from penstock.errors import OffsetError
from penstock.format.names import segment_name
from penstock.log.segment import Readable, Segment, take
from penstock.log.segmented_log import SegmentedLog, plausible
from penstock.testing import SimulatedDisk

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


def test_a_segment_taken_away_while_it_is_read_is_told_as_out_of_range() -> None:
    disk, log = log_of(0, SIZE)
    log.read(0, 1)
    disk.remove(FOLDER / segment_name(0))
    with pytest.raises(OffsetError) as raised:
        log.read(0, 1)
    assert raised.value.low == SIZE


def test_a_file_created_ahead_is_no_segment_of_the_log_that_is_written_here() -> None:
    """A read that met a deleted file listed the folder: the next segment was there twice, and the store failed."""
    disk, log = log_of(0, SIZE, mapped=True)
    disk.write_whole(FOLDER / segment_name(2 * SIZE), bytes(SIZE))
    disk.remove(FOLDER / segment_name(0))
    with pytest.raises(OffsetError):
        log.read(0, 1)
    log.refresh()
    assert log.spans() == [(0, SIZE), (SIZE, 2 * SIZE)]


def test_a_cut_erases_what_is_after_it_and_keeps_what_was_asked_for() -> None:
    disk, log = log_of(0, SIZE, 2 * SIZE)
    disk.write_whole(FOLDER / segment_name(2 * SIZE), bytes(SIZE))
    disk.make_folder_durably(Path("/kept"))
    mended = log.truncate(100, Path("/kept"))
    assert [text.split()[0] for text in mended] == ["moved", "removed"]
    assert [entry.name for entry in disk.entries(Path("/kept"))] == [f"{segment_name(SIZE)}-1"]
    assert bytes(log.read(0, SIZE)) == b"\1" * 100 + bytes(SIZE - 100)
    assert (len(log.segments), log.committed_offset) == (1, 100)


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
