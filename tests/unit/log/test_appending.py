"""The end of the log being written: a record or a batch is there whole, with its room found before, or not at all."""

import errno
import gc
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.lanes import eventually
from tests.unit.log.logs import Held

from penstock import Message, Receipt
from penstock._kernel import Batch, QueueCursor, RecordEncoder
from penstock.contracts import Context, NoOptions, SegmentChannel
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.progress import Progress
from penstock.errors import (
    BusyError,
    DiskFullError,
    MessageTooLargeError,
    StoreClosedError,
    StoreFailedError,
    SystemLimitError,
)
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from penstock.log.commit_log import CommitLog, LogTail
from penstock.log.segmented_log import SegmentedLog
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, make_context, open_store
from penstock.testing.kit import SMALL
from penstock_alloc.allocators import OnDemandAllocator
from penstock_alloc.writers import FileChannel, FileWriter

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
    assert context.files is disk
    return SegmentedLog(disk, ROOT / "commitlog", SIZE, mapped=True)


class RecordingAllocator(OnDemandAllocator):
    """Notes which files it is asked to expect and to discard, and how often it was closed."""

    def __init__(self, context: Context) -> None:
        super().__init__(NoOptions(), context)
        self.expected: list[list[int]] = []
        self.discarded: list[int] = []
        self.closes = 0

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        assert (size, allocated) == (SIZE, False)
        self.expected.append([int(path.name) for path in paths])

    def discard(self, path: Path, *, in_use: bool = False) -> None:
        self.discarded.append(int(path.name))
        super().discard(path, in_use=in_use)

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def allocator(context: Context) -> RecordingAllocator:
    return RecordingAllocator(context)


@pytest.fixture
def tail(
    context: Context, log: SegmentedLog, disk: SimulatedDisk, allocator: RecordingAllocator
) -> LogTail:
    return LogTail(log, FileWriter(NoOptions(), context), allocator, disk)


def batch_of(*sizes: int) -> Batch:
    """Return a batch of records of these sizes."""
    batch = Batch(encoder())
    for size in sizes:
        batch.add(Message("t", b"x" * (size - len(b"t") - 91), queue=0))
    assert list(batch.sizes(0, len(sizes))) == list(sizes)
    return batch


def encoder() -> RecordEncoder:
    return RecordEncoder(
        bytes(8),
        crc_property=False,
        body_bytes_max=SIZE,
        time_ms=lambda: 5,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0),
    )


def test_a_roll_fills_the_old_segment_with_one_blank_record(
    tail: LogTail, log: SegmentedLog
) -> None:
    first = tail.roll()
    tail.write(first, b"a")
    tail.write(first, b"bc")
    assert (first.base_offset, log.committed_offset) == (0, 3)
    assert bytes(log.read(0, 3)) == b"abc"
    fresh = tail.roll()
    assert (fresh.base_offset, log.committed_offset) == (SIZE, SIZE)
    assert SIZE_AND_MAGIC.unpack(bytes(log.read(3, 8))) == (SIZE - 3, MAGIC_BLANK)
    assert [segment.base_offset for segment in tail.sealed] == [0]


def test_without_a_record_a_full_segment_gets_no_blank_and_is_sealed_once(
    tail: LogTail, log: SegmentedLog
) -> None:
    first = tail.roll()
    tail.write_batch(first, b"x" * SIZE, (SIZE,))
    tail.turn_to(tail.obtain(SIZE))
    assert bytes(log.read(SIZE - 8, 8)) == b"x" * 8
    assert (tail.sealed, log.committed_offset) == ([first], SIZE)
    tail.segment = first
    tail.turn_to(tail.obtain(2 * SIZE))
    assert tail.sealed == [first]


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


def test_a_roll_that_fails_at_the_blank_record_gives_the_new_file_back(
    tail: LogTail, allocator: RecordingAllocator, disk: SimulatedDisk, log: SegmentedLog
) -> None:
    first = tail.roll()
    tail.write(first, b"abc")
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
    with pytest.raises(DiskFullError, match="no space for 8 bytes"):
        tail.roll()
    assert (tail.segment, allocator.discarded, tail.sealed) == (first, [SIZE], [])
    assert log.committed_offset == 3


def test_a_part_of_a_batch_that_cannot_be_erased_is_an_error_of_its_own(
    tail: LogTail, disk: SimulatedDisk
) -> None:
    segment = tail.roll()
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog")
    with pytest.raises(OSError, match="could not be erased") as raised:
        tail.write_batch(segment, b"abc" * 1000, (1500, 1500))
    assert raised.value.errno == errno.EIO
    assert (segment.wrote_position, segment.committed_position) == (0, 0)


def test_appending_goes_on_where_recovery_found_the_end(
    tail: LogTail, log: SegmentedLog, disk: SimulatedDisk
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


def test_a_batch_is_planned_up_to_the_last_byte_that_leaves_room_for_a_blank(
    tail: LogTail, allocator: RecordingAllocator
) -> None:
    first = tail.roll()
    tail.write(first, b"x" * 100)
    room = SIZE - 100 - BLANK_SIZE
    (piece,) = tail.plan(batch_of(room - 200, 200), atomic=True)
    assert piece[:5] == (first, 0, room, 100, 0)
    assert list(piece.sizes) == [room - 200, 200]
    one, two = tail.plan(batch_of(room - 200, 201), atomic=False)
    assert one[:5] == (first, 0, room - 200, 100, 0)
    assert (two.segment.base_offset, *two[1:5]) == (SIZE, room - 200, room + 1, 0, 1)
    assert [list(piece.sizes) for piece in (one, two)] == [[room - 200], [201]]
    tail.forget([one, two])
    assert allocator.discarded == [SIZE]
    (whole,) = tail.plan(batch_of(room - 200, 201), atomic=True)
    assert (whole.segment.base_offset, *whole[1:5]) == (SIZE, 0, room + 1, 0, 0)


def test_a_batch_has_all_its_segments_before_it_is_written_or_none(
    tail: LogTail, allocator: RecordingAllocator, disk: SimulatedDisk
) -> None:
    large = SIZE - 1000
    pieces = tail.plan(batch_of(large, large, large), atomic=False)
    assert [piece.segment.base_offset for piece in pieces] == [0, SIZE, 2 * SIZE]
    tail.forget(pieces)
    assert allocator.discarded == [0, SIZE, 2 * SIZE]
    disk.plan.fail("create", errno.ENOSPC, times=1, after=2)
    with pytest.raises(DiskFullError):
        tail.plan(batch_of(large, large, large), atomic=False)
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


def test_after_an_interrupt_the_fields_follow_the_log_and_what_was_written(
    tail: LogTail, log: SegmentedLog
) -> None:
    """An interrupt may come before the segment is noted, and before its committed position is."""
    first = tail.roll()
    fresh = tail.obtain(SIZE)
    log.add(fresh)
    first.wrote_position, fresh.wrote_position = 5, 7
    tail.repair_after_interrupt()
    assert tail.segment is fresh
    assert (first.committed_position, fresh.committed_position) == (5, 7)


class ReservingBlocks(Blocks):
    """Notes what is reserved; there is room for three times."""

    reserved: ClassVar[list[tuple[Blocks, int]]] = []

    def reserve(self, stop: int) -> None:
        self.reserved.append((self, stop))
        if len(self.reserved) == 4:
            raise OSError(errno.ENOSPC, "no room")


class ReservingWriter(FileWriter):
    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return FileChannel(file, capacity, ReservingBlocks(file, capacity, position))


def test_room_for_a_batch_and_its_blanks_is_there_before_its_first_byte(
    context: Context, log: SegmentedLog, disk: SimulatedDisk, allocator: RecordingAllocator
) -> None:
    tail = LogTail(log, ReservingWriter(NoOptions(), context), allocator, disk)
    first = tail.roll()
    tail.write(first, b"x" * 100)
    batch = batch_of(SIZE - 2000, SIZE - BLANK_SIZE, 2000)
    ReservingBlocks.reserved.clear()
    pieces = tail.plan(batch, atomic=False)
    ReservingBlocks.reserved.clear()
    with pytest.raises(DiskFullError, match="no space for 8 bytes"):
        tail.write_pieces(pieces, memoryview(batch))
    blocks = [
        each.channel and each.channel.blocks for each in (*(p.segment for p in pieces), first)
    ]
    stops = [100 + SIZE - 2000 + BLANK_SIZE, SIZE, 2000 + BLANK_SIZE, 100 + BLANK_SIZE]
    assert ReservingBlocks.reserved == list(zip(blocks, stops, strict=True))
    assert not tail.has_begun(pieces)
    assert (first.wrote_position, tail.segment) == (100, first)


def test_at_the_end_what_was_allocated_ahead_is_given_back_and_all_is_closed_once(
    tail: LogTail, allocator: RecordingAllocator, disk: SimulatedDisk
) -> None:
    tail.give_back()
    tail.write(tail.roll(), b"abc")
    before, calls = disk.used, list[str]()
    disk.plan.watch = lambda call, path: calls.append(call)
    tail.give_back()
    assert disk.used < before
    assert calls[-1] == "sync"
    tail.close()
    tail.close()
    assert allocator.closes == 1


# --- records


@pytest.fixture
def commit_log(log: SegmentedLog, tail: LogTail) -> CommitLog:
    made = CommitLog(log, tail, encoder(), clock=ManualClock(), busy_ms=1000, record_reserve=500)
    made.resume(0, 3)
    return made


def test_an_empty_batch_appends_nothing(commit_log: CommitLog) -> None:
    assert commit_log.append_batch(Batch(commit_log.encoder)) == commit_log.last_time_ms == 3
    assert commit_log.end_offset == 0


def test_a_record_leaves_room_for_its_copies_and_a_blank_one(commit_log: CommitLog) -> None:
    commit_log.check_put(SIZE - 8 - 500)
    with pytest.raises(MessageTooLargeError, match="shorten the message by 1 bytes") as raised:
        commit_log.check_put(SIZE - 8 - 500 + 1)
    assert raised.value.limit == SIZE - 8 - 500
    commit_log.check_size(SIZE - 8)
    with pytest.raises(MessageTooLargeError):
        commit_log.check_size(SIZE - 7)


def test_after_a_stop_nothing_is_appended(commit_log: CommitLog) -> None:
    commit_log.append_batch(batch_of(200))
    commit_log.stop()
    commit_log.stop()
    with pytest.raises(StoreClosedError):
        commit_log.append_batch(batch_of(200))
    assert commit_log.end_offset == 200


def test_after_a_part_of_a_batch_nothing_is_appended(
    commit_log: CommitLog, disk: SimulatedDisk
) -> None:
    """Another thread may append before the failure is noted: its queue offsets were those of the part that is there."""
    commit_log.start(LogFlusher(commit_log, Progress(disk, ROOT), 0))
    disk.plan.fail("pwrite", errno.EIO, path=f"{SIZE:020d}", times=1)
    with pytest.raises(OSError, match="only part of a batch was written"):
        commit_log.append_batch(batch_of(SIZE - 1000, 2000))
    end = commit_log.end_offset
    with pytest.raises(StoreFailedError, match="an append or a sync failed"):
        commit_log.append_batch(batch_of(200))
    assert commit_log.end_offset == end


def test_what_an_ended_process_wrote_is_read_with_its_checksums(
    commit_log: CommitLog, disk: SimulatedDisk
) -> None:
    """While a store is opened, the records to dispatch come from a process that may have died in the middle of one."""
    commit_log.append_batch(batch_of(200, 300))
    file = disk.open(commit_log.log.segments[0].path, writable=True)
    file.pwrite(b"?", 350)
    file.close()
    assert [len(batch) for batch in commit_log.batches(0, 500)] == [1]
    commit_log.checks_crc = False
    assert [len(batch) for batch in commit_log.batches(0, 500)] == [2]


# --- whatever Python code runs while a message is put


class Index:
    """A whole number that does something when it is asked for."""

    def __init__(self, number: int, does: Callable[[], object]) -> None:
        self._number, self._does = number, does

    def __index__(self) -> int:
        self._does()
        return self._number


@pytest.mark.parametrize("name", ["flag", "born_time_ms", "queue"])
def test_a_number_that_puts_another_message_when_it_is_asked_for(name: str, tmp_path: Path) -> None:
    """In a first prototype the second record ran 1,454 bytes beyond the segment."""
    with open_store(tmp_path / "s", spawn=ManualWorkers(), alloc="on-demand") as store:
        store.put("fill", b"x" * (SIZE - 2000), queue=0)
        inner: list[Receipt] = []
        number: Any = Index(3, lambda: inner.append(store.put("inner", b"y" * 1000, queue=0)))
        given: Any = {name: number}
        receipt = store.put("outer", b"z" * 200, **given)
        assert inner[0].log_offset < receipt.log_offset
        assert [m.body for m in store.scan("outer")] == [b"z" * 200]
        assert not list(store.verify())


def test_what_the_caller_changes_while_the_lock_is_waited_for_changes_no_record(
    tmp_path: Path,
) -> None:
    """The bytes of another text went into the log."""
    files = Held()
    word = "a-key-that-is-long-enough-to-be-freed-at-once"
    keys, body = [word[:]], bytearray(b"x" * 100)
    given: Any = {"log.busy_ms": 60_000}
    with open_store(tmp_path / "s", files=files, alloc="on-demand", **given) as store:
        store.put("u", b"x" * (SIZE - 2000), queue=0)
        rolls = threading.Thread(target=store.put, args=("u", b"y" * 3000))
        rolls.start()
        files.asked.wait()
        buffer: Any = body
        waits = threading.Thread(target=lambda: store.put("t", buffer, queue=0, keys=keys))
        waits.start()
        eventually(lambda: store.stats()["append_lock"]["waits"] == 1)
        keys.clear()
        gc.collect()
        files.may_go_on.set()
        rolls.join()
        waits.join()
        body[:] = b"y" * 100
        assert [(m.keys, m.body) for m in store.scan("t")] == [((word,), b"x" * 100)]


class NestingChannel(FileChannel):
    """Does something within a write, as a signal handler or a finaliser may."""

    does: ClassVar[Callable[[], object]]

    def write(self, position: int, data: Any, sizes: Sequence[int] = ()) -> None:
        type(self).does()
        super().write(position, data, sizes)


class NestingWriter(FileWriter):
    name: ClassVar[str] = "nesting"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return NestingChannel(file, capacity)


def test_an_append_within_an_append_of_the_same_thread_is_refused(tmp_path: Path) -> None:
    with open_store(
        tmp_path / "s", spawn=ManualWorkers(), strategies=[NestingWriter], write="nesting"
    ) as store:

        def puts() -> None:
            with pytest.raises(BusyError):
                store.put("t", b"inner", queue=0)
            with pytest.raises(BusyError):
                store.put_many([Message("t", b"inner", queue=0)] * 3)

        NestingChannel.does = staticmethod(puts)
        store.put("t", b"outer", queue=0)
        store.put_many([Message("t", b"outer", queue=0)] * 3)
        assert [m.body for m in store.scan("t")] == [b"outer"] * 4
        assert not list(store.verify())
        NestingChannel.does = staticmethod(list)
