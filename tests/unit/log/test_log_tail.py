"""The end of the log being written: the next segment is there before the old one is full, or nothing counts."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.contracts import Context, NoOptions
from penstock.errors import DiskFullError, SystemLimitError
from penstock.files import File
from penstock.format.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.log.log_tail import LogTail
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Message
from penstock.testing import SimulatedDisk, make_context
from penstock.testing.kit import SMALL
from penstock_alloc.file_writer import FileChannel, FileWriter
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


class RecordingAllocator(OnDemandAllocator):
    """Records which files it is asked to expect and to discard, and how often it was closed."""

    def __init__(self, context: Context) -> None:
        super().__init__(NoOptions(), context)
        self.expected: list[list[int]] = []
        self.discarded: list[int] = []
        self.closes = 0
        self.files: list[File] = []

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        assert (size, allocated) == (SIZE, False)
        self.expected.append([int(path.name) for path in paths])

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        self.files.append(super().obtain(path, size, allocated=allocated))
        return self.files[-1]

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        self.discarded.append(int(path.name))
        super().discard(path, in_use=in_use)

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def allocator(context: Context) -> RecordingAllocator:
    return RecordingAllocator(context)


@pytest.fixture
def recorded(
    context: Context, log: SegmentedLog, disk: SimulatedDisk, allocator: RecordingAllocator
) -> LogTail:
    return LogTail(log, FileWriter(NoOptions(), context), allocator, disk)


def batch_of(*sizes: int) -> Batch:
    """Return a batch of records of these sizes."""
    encoder = RecordEncoder(
        bytes(8), crc_property=False, body_bytes_max=SIZE, time_ms=lambda: 5,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0),
    )  # fmt: skip
    batch = Batch(encoder)
    for size in sizes:
        batch.add(Message("t", b"x" * (size - len(b"t") - 91)))
    assert list(batch.sizes(0, len(sizes))) == list(sizes)
    return batch


def test_the_allocator_is_told_of_the_next_two_files_and_once_of_each_pair(
    recorded: LogTail, allocator: RecordingAllocator
) -> None:
    recorded.expect()
    recorded.expect()
    assert allocator.expected == [[0, SIZE]]
    recorded.roll()
    recorded.expect()
    assert allocator.expected == [[0, SIZE], [SIZE, 2 * SIZE]]
    recorded.take(recorded.obtain(SIZE))
    assert allocator.expected[2:] == [[2 * SIZE, 3 * SIZE]]


def test_a_roll_that_fails_at_the_blank_record_gives_the_new_file_back(
    recorded: LogTail, allocator: RecordingAllocator, disk: SimulatedDisk, log: SegmentedLog
) -> None:
    first = recorded.roll()
    recorded.write(first, b"abc")
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
    with pytest.raises(DiskFullError, match="no space for 8 bytes"):
        recorded.roll()
    assert (recorded.segment, allocator.discarded, recorded.sealed) == (first, [SIZE], [])
    assert log.committed_offset == 3


def test_without_a_record_a_full_segment_gets_no_blank_and_is_sealed_once(
    tail: LogTail, log: SegmentedLog
) -> None:
    first = tail.roll()
    tail.write_batch(first, b"x" * SIZE)
    tail.turn_to(tail.obtain(SIZE))
    assert bytes(log.read(SIZE - 8, 8)) == b"x" * 8
    assert (tail.sealed, log.committed_offset) == ([first], SIZE)
    tail.segment = first
    tail.turn_to(tail.obtain(2 * SIZE))
    assert tail.sealed == [first]


def test_a_batch_is_planned_up_to_the_last_byte_that_leaves_room_for_a_blank(
    recorded: LogTail, allocator: RecordingAllocator
) -> None:
    first = recorded.roll()
    recorded.write(first, b"x" * 100)
    room = SIZE - 100 - BLANK_SIZE
    (piece,) = recorded.plan(batch_of(room - 200, 200), atomic=True)
    assert piece[:5] == (first, 0, room, 100, 0)
    assert list(piece.sizes) == [room - 200, 200]
    one, two = recorded.plan(batch_of(room - 200, 201), atomic=False)
    assert one[:5] == (first, 0, room - 200, 100, 0)
    assert (two.segment.base_offset, *two[1:5]) == (SIZE, room - 200, room + 1, 0, 1)
    assert [list(piece.sizes) for piece in (one, two)] == [[room - 200], [201]]
    recorded.forget([one, two])
    assert allocator.discarded == [SIZE]
    (whole,) = recorded.plan(batch_of(room - 200, 201), atomic=True)
    assert (whole.segment.base_offset, *whole[1:5]) == (SIZE, 0, room + 1, 0, 0)


def test_a_batch_has_all_its_segments_before_it_is_written_or_none(
    recorded: LogTail, allocator: RecordingAllocator, disk: SimulatedDisk
) -> None:
    large = SIZE - 1000
    pieces = recorded.plan(batch_of(large, large, large), atomic=False)
    assert [piece.segment.base_offset for piece in pieces] == [0, SIZE, 2 * SIZE]
    recorded.forget(pieces)
    assert allocator.discarded == [0, SIZE, 2 * SIZE]
    disk.plan.fail("create", errno.ENOSPC, times=1, after=2)
    with pytest.raises(DiskFullError):
        recorded.plan(batch_of(large, large, large), atomic=False)
    assert allocator.discarded[3:] == [0, SIZE]


def test_what_is_written_of_a_batch_is_not_written_again(tail: LogTail, log: SegmentedLog) -> None:
    batch = batch_of(SIZE - 1000, 2000)
    pieces = tail.plan(batch, atomic=False)
    assert not tail.has_begun(pieces)
    tail.write_pieces(pieces[:1], memoryview(batch))
    assert tail.has_begun(pieces)
    tail.write_pieces(pieces, memoryview(bytes(SIZE - 1000) + bytes(memoryview(batch))[-2000:]))
    assert bytes(log.read(0, SIZE - 1000)) == bytes(memoryview(batch))[:-2000]
    assert log.committed_offset == SIZE + 2000
    assert [segment.base_offset for segment in tail.sealed] == [0]


def test_room_for_a_batch_and_its_blanks_is_there_before_its_first_byte(
    tail: LogTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tail.roll()
    tail.write(first, b"x" * 100)
    batch = batch_of(SIZE - 2000, SIZE - BLANK_SIZE, 2000)
    pieces = tail.plan(batch, atomic=False)
    reserved: list[tuple[FileChannel, int]] = []

    def full(channel: FileChannel, stop: int) -> None:
        reserved.append((channel, stop))
        if len(reserved) == 4:
            raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(FileChannel, "reserve", full)
    with pytest.raises(DiskFullError, match="no space for 8 bytes"):
        tail.write_pieces(pieces, memoryview(batch))
    channels = [piece.segment.channel for piece in pieces]
    stops = [100 + SIZE - 2000 + BLANK_SIZE, SIZE, 2000 + BLANK_SIZE, 100 + BLANK_SIZE]
    assert reserved == list(zip([*channels, first.channel], stops, strict=True))
    assert not tail.has_begun(pieces)
    assert (first.wrote_position, tail.segment) == (100, first)


def test_a_part_of_a_batch_that_cannot_be_erased_is_an_error_of_its_own(
    tail: LogTail, disk: SimulatedDisk
) -> None:
    segment = tail.roll()
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog")
    with pytest.raises(OSError, match="could not be erased") as raised:
        tail.write_batch(segment, b"abc" * 1000, (1500, 1500))
    assert raised.value.errno == errno.EIO
    assert (segment.wrote_position, segment.committed_position) == (0, 0)


def test_after_an_interrupt_the_fields_follow_the_log_and_what_was_written(
    tail: LogTail, log: SegmentedLog
) -> None:
    """An interrupt may come before the segment is noted, and before its committed position is."""
    first = tail.roll()
    fresh = tail.obtain(SIZE)
    log.add(fresh)
    first.wrote_position, fresh.wrote_position = 5, 7
    tail.settle()
    assert tail.segment is fresh
    assert (first.committed_position, fresh.committed_position) == (5, 7)


def test_at_the_end_what_was_allocated_ahead_is_given_back_and_all_is_closed_once(
    recorded: LogTail, allocator: RecordingAllocator, disk: SimulatedDisk
) -> None:
    recorded.give_back()
    recorded.write(recorded.roll(), b"abc")
    before = disk.used
    recorded.give_back()
    assert disk.used < before
    recorded.close()
    recorded.close()
    assert allocator.closes == 1
