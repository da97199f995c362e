"""Who waits for a sync is told once, and a sync that failed is the last one."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock._kernel import Batch, QueueCursor, RecordEncoder, SyncGate
from penstock.contracts import NoOptions
from penstock.durability.log_flusher import LogFlusher
from penstock.durability.progress import Progress
from penstock.errors import StoreFailedError, SystemLimitError
from penstock.log.commit_log import CommitLog, LogTail
from penstock.log.segmented_log import SegmentedLog
from penstock.message import Message
from penstock.testing import ManualClock, SimulatedDisk, make_context
from penstock_alloc.allocators import OnDemandAllocator
from penstock_alloc.writers import FileWriter

ROOT = Path("/store")
SIZE = 64 * 1024


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


class OwnLog(SegmentedLog):
    """A log whose bytes cannot always be passed to the system."""

    error: Exception | None = None

    def commit(self) -> int:
        if self.error is not None:
            raise self.error
        return super().commit()


@pytest.fixture
def log(disk: SimulatedDisk) -> CommitLog:
    context = make_context(ROOT, files=disk)
    segments = OwnLog(disk, ROOT / "commitlog", SIZE, mapped=False)
    writer, allocator = FileWriter(NoOptions(), context), OnDemandAllocator(NoOptions(), context)
    encoder = RecordEncoder(
        bytes(8),
        crc_property=False,
        body_bytes_max=SIZE,
        time_ms=lambda: 5,
        make_cursor=lambda topic, queue: QueueCursor(topic, queue, 0),
    )
    tail = LogTail(segments, writer, allocator, disk)
    made = CommitLog(segments, tail, encoder, clock=ManualClock(), busy_ms=1000)
    made.resume(0, 0)
    return made


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def flusher(log: CommitLog, disk: SimulatedDisk, failures: list[str]) -> LogFlusher:
    """The flusher of a log in which three records wait for a sync; nobody runs it but who flushes."""
    made = LogFlusher(log, Progress(disk, ROOT), 0, on_failed=failures.append)
    made.start(lambda: None, lambda: None)
    put(log, 3)
    return made


def put(log: CommitLog, count: int) -> None:
    batch = Batch(log.encoder)
    for _ in range(count):
        batch.add(Message("t", b"x", queue=0))
    log.append_batch(batch)


def test_after_a_failed_sync_nothing_is_synced_and_everybody_hears_the_one_error(
    flusher: LogFlusher, log: CommitLog, disk: SimulatedDisk, failures: list[str]
) -> None:
    told = list[int]()
    flusher.flush()
    durable = flusher.flushed_offset
    put(log, 3)
    flusher.add_waiter(flusher.wrote_offset, lambda: told.append(1))
    disk.plan.fail("sync", errno.EIO, path="commitlog", times=1)
    with pytest.raises(StoreFailedError, match="a sync of the log failed") as raised:
        flusher.flush()
    assert (told, failures) == ([1], [raised.value.reason])
    assert (raised.value.durable_offset, flusher.flushed_offset) == (durable, durable)
    for again in (flusher.flush, flusher.commit, flusher.check):
        with pytest.raises(StoreFailedError) as second:
            again()
        assert second.value is raised.value
    assert flusher.outcome(flusher.wrote_offset) is raised.value
    assert flusher.outcome(durable) is None
    assert flusher.fail("another") is flusher.lost(7) is raised.value, "the first one counts"
    with pytest.raises(StoreFailedError):
        flusher.wait(flusher.wrote_offset, 60_000)


def test_who_still_waits_at_the_close_is_told_that_it_was_closed(flusher: LogFlusher) -> None:
    told: list[int] = []
    flusher.add_waiter(flusher.wrote_offset, lambda: told.append(1))
    flusher.close()
    assert told == [1]
    assert "closed before the log was synced" in str(flusher.outcome(flusher.wrote_offset))


def test_a_progress_file_that_cannot_be_written_fails_the_store_though_the_log_is_synced(
    flusher: LogFlusher, disk: SimulatedDisk
) -> None:
    disk.plan.fail("pwrite", errno.ENOSPC, path="progress")
    with pytest.raises(StoreFailedError, match="the log is synced, but the progress file"):
        flusher.flush()
    assert flusher.failure is not None
    assert flusher.flushed_offset == flusher.failure.durable_offset == 0


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("broken")])
def test_a_commit_that_fails_is_the_failure_of_the_store(
    error: Exception, flusher: LogFlusher, log: CommitLog, failures: list[str]
) -> None:
    assert flusher.commit() == flusher.wrote_offset == flusher.committed_offset
    assert isinstance(log.log, OwnLog)
    log.log.error = error
    with pytest.raises(StoreFailedError, match=r"by segment writer 'file'.*broken") as raised:
        flusher.commit()
    assert failures == [raised.value.reason]


@pytest.mark.parametrize("tells", [True, False])
def test_a_waiter_that_one_thread_holds_while_another_tells_is_told(
    tells: bool, flusher: LogFlusher, log: CommitLog
) -> None:
    """Looked at by a thread that knows of less, while another one syncs, and tells it or has told before."""
    told, durable = list[int](), flusher.flush()
    put(log, 1)
    end = flusher.wrote_offset

    def sync() -> None:
        flusher.gate.wait(end, 5, 5, runs=True)
        if tells:
            flusher.collect_results()

    flusher.add_waiter(end, lambda: told.append(1))
    assert told == []
    flusher.add_waiter(durable, sync)
    assert told == [1]


@pytest.mark.parametrize("interrupted", ["before", "after"])
def test_a_waiter_whose_teller_is_interrupted_is_told(
    interrupted: str, flusher: LogFlusher
) -> None:
    told, durable, interrupts = list[int](), flusher.flush(), [KeyboardInterrupt()]

    def tell() -> None:
        if interrupted == "after":
            told.append(1)
        if interrupts:
            raise interrupts.pop()
        told.append(2)

    with pytest.raises(KeyboardInterrupt):
        flusher.add_waiter(durable, tell)
    flusher.add_waiter(durable, lambda: told.append(3))
    assert told[-2:] == [2, 3]


class NoneFree(Progress):
    def share(self, _gate: SyncGate, _wake: Callable[[], object] | None = None) -> None:
        raise OSError(errno.EMFILE, "none is free")


def test_without_a_sync_thread_no_store_is_opened(log: CommitLog, disk: SimulatedDisk) -> None:
    flusher = LogFlusher(log, NoneFree(disk, ROOT), 0)
    with pytest.raises(SystemLimitError, match="the log's sync thread cannot be started"):
        flusher.start(lambda: None, None)


def test_nobody_is_told_while_a_segment_is_taken_in(flusher: LogFlusher, log: CommitLog) -> None:
    """That is under the append lock: a put in a callback of `submit` was refused now and then."""
    told = list[int]()
    flusher.add_waiter(flusher.wrote_offset, lambda: told.append(1))
    flusher.gate.wait(flusher.wrote_offset, 0, 0, runs=True)
    segments = len(log.log.segments)
    while len(log.log.segments) == segments:
        put(log, 100)
    flusher.take_in()
    assert not told
    flusher.collect_results()
    assert told == [1]
