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
    StoreFailedError,
)
from penstock.files import File
from penstock.files.blocks import Blocks
from penstock.format.record import BLANK_SIZE
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


@pytest.fixture
def tail(context: Context, log: SegmentedLog, disk: SimulatedDisk) -> LogTail:
    options = NoOptions()
    return LogTail(log, FileWriter(options, context), OnDemandAllocator(options, context), disk)


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
    context: Context, tail: LogTail
) -> None:
    tail.writer = ReservingWriter(NoOptions(), context)
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
    assert not tail.part_of(pieces)
    assert (first.wrote_position, tail.segment) == (100, first)


# --- records


@pytest.fixture
def commit_log(log: SegmentedLog, tail: LogTail) -> CommitLog:
    made = CommitLog(log, tail, encoder(), clock=ManualClock(), busy_ms=1000, record_reserve=500)
    made.resume(0, 3)
    return made


def test_a_record_leaves_room_for_its_copies_and_a_blank_one(commit_log: CommitLog) -> None:
    commit_log.check_put(SIZE - 8 - 500)
    with pytest.raises(MessageTooLargeError, match="shorten the message by 1 bytes") as raised:
        commit_log.check_put(SIZE - 8 - 500 + 1)
    assert raised.value.limit == SIZE - 8 - 500
    commit_log.check_size(SIZE - 8)
    with pytest.raises(MessageTooLargeError):
        commit_log.check_size(SIZE - 7)


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


def test_after_a_write_that_failed_nothing_is_appended(
    commit_log: CommitLog, disk: SimulatedDisk
) -> None:
    """What was written may be whole records; another thread appended before the failure was noted, and kept them."""
    commit_log.append_batch(batch_of(100))
    commit_log.start(LogFlusher(commit_log, Progress(disk, ROOT), 0))
    disk.plan.fail("pwrite", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        commit_log.append_batch(batch_of(200))
    with pytest.raises(StoreFailedError, match="an append or a sync failed"):
        commit_log.append_batch(batch_of(200))


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


class FailingChannel(FileChannel):
    """Raises in one of its calls, once it has done what it is asked for."""

    fails_in: ClassVar[str] = ""
    error: ClassVar[BaseException] = ValueError("no")

    @property
    def buffer_end(self) -> int:
        if self.fails_in == "buffer_end":
            raise self.error
        return super().buffer_end

    def write(self, position: int, data: Any, sizes: Sequence[int] = ()) -> None:
        super().write(position, data, sizes)
        if self.fails_in == "write":
            raise self.error


class FailingWriter(FileWriter):
    name: ClassVar[str] = "failing"

    def open(self, file: File, capacity: int, position: int) -> SegmentChannel:
        return FailingChannel(file, capacity)


@pytest.mark.parametrize(("call", "error", "raised", "text"), [
    ("write", ValueError("no"), StoreFailedError, "segment writer 'failing' failed"),
    ("buffer_end", ValueError("no"), StoreFailedError, "is in the log"),
    ("write", KeyboardInterrupt("twice"), KeyboardInterrupt, "twice"),
], ids=["write", "buffer-end", "interrupts"])  # fmt: skip
@pytest.mark.parametrize("count", [1, 3], ids=["put", "batch"])
def test_a_write_that_fails_or_is_interrupted_twice_stops_the_store(
    call: str, error: BaseException, raised: type[BaseException], text: str, count: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The caller got the writer's own error; the next message was put over the first, and a kill brought back others."""
    store = open_store(
        tmp_path / "s", spawn=ManualWorkers(), strategies=[FailingWriter], write="failing"
    )
    store.put("t", b"0", queue=0)
    messages = [Message("t", b"in doubt", queue=0)] * count
    monkeypatch.setattr(FailingChannel, "fails_in", call)
    # The clean-up of an interrupted append writes again, and is interrupted too.
    monkeypatch.setattr(FailingChannel, "error", error)
    with pytest.raises(raised, match=text):
        store.put_many(messages) if count > 1 else store.put("t", b"in doubt", queue=0)
    monkeypatch.undo()
    with pytest.raises(StoreFailedError):
        store.put("t", b"1", queue=0)
    with pytest.raises(StoreFailedError):
        store.close()
    with open_store(tmp_path / "s") as again:
        assert [m.body for m in again.scan("t")] == [b"0", *[b"in doubt"] * count]
        assert not list(again.verify())


class ForgetfulAllocator(OnDemandAllocator):
    name: ClassVar[str] = "forgetful"

    def expect(self, paths: Sequence[Path], size: int, *, allocated: bool) -> None:
        raise ValueError("no")


def test_an_allocator_that_fails_to_expect_files_fails_no_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch over two segments was wholly written, and the error said that only part of it was."""
    with open_store(tmp_path / "s", strategies=[ForgetfulAllocator], alloc="forgetful") as store:
        store.put_many([Message("t", b"x" * (SIZE // 2), queue=0)] * 3)
        assert store.max_offset("t", 0) == 3
    assert "allocator 'forgetful' failed in expect" in caplog.text


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
