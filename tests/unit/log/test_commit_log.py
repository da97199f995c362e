"""The log as records: offsets, times, and that whatever raises leaves no trace."""

import errno
from pathlib import Path

import pytest

from penstock._kernel import Batch
from penstock.errors import (
    DiskFullError,
    MessageTooLargeError,
    OffsetError,
    StoreClosedError,
)
from penstock.log.commit_log import CommitLog
from penstock.store.store import Store
from penstock.testing import ManualClock, ManualWorkers, SimulatedDisk, messages, open_store
from penstock.testing.kit import SMALL
from penstock_messaging.extension import MessagingExtension

SIZE = SMALL.segment_bytes


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock) -> Store:
    return open_store(
        Path("/store"), files=disk, clock=clock, spawn=ManualWorkers(), write="file",
        flush="none", retention=[],
    )  # fmt: skip


@pytest.fixture
def log(store: Store) -> CommitLog:
    assert store._engine is not None
    return store._engine.log


def test_an_empty_batch_appends_nothing(store: Store, log: CommitLog) -> None:
    store.put("t", b"x")
    end = log.end_offset
    assert log.append_batch(Batch(log.encoder)) == log.last_time_ms
    assert log.end_offset == end


def test_a_record_that_fits_into_no_segment_is_refused_with_its_limit(
    store: Store, log: CommitLog
) -> None:
    with pytest.raises(MessageTooLargeError) as raised:
        store.put("t", b"x" * SIZE)
    assert raised.value.limit == SIZE - 8 - MessagingExtension.record_reserve
    assert log.end_offset == 0


def test_a_put_without_room_counts_neither_in_the_log_nor_in_its_queue(
    store: Store, log: CommitLog, disk: SimulatedDisk
) -> None:
    store.put("t", b"x")
    end = log.end_offset
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
    with pytest.raises(DiskFullError):
        store.put("t", b"y")
    receipt = store.put("t", b"z")
    assert (receipt.log_offset, receipt.queue_offset) == (end, 1)


def test_after_a_stop_nothing_is_appended(store: Store, log: CommitLog) -> None:
    store.put("t", b"x")
    end = log.end_offset
    log.stop()
    log.stop()
    for put in (lambda: store.put("t", b"y"), lambda: store.put_many(messages(2))):
        with pytest.raises(StoreClosedError):
            put()
    assert log.end_offset == end


def test_a_copied_piece_must_begin_at_the_end_and_fit_into_the_segment(
    store: Store, log: CommitLog
) -> None:
    store.put("t", b"x")
    record = bytes(log.log.read(0, log.end_offset))
    with pytest.raises(OffsetError, match="copied log offset"):
        log.append_raw(0, record)
    with pytest.raises(MessageTooLargeError, match="split it where the segment ends"):
        log.append_raw(log.end_offset, bytes(SIZE))
    end = log.end_offset
    log.append_raw(end, record)
    assert (log.end_offset, log.has_copies) == (2 * end, True)


def test_what_an_ended_process_wrote_is_read_with_its_checksums(
    store: Store, log: CommitLog, disk: SimulatedDisk
) -> None:
    """While a store is opened, the records to dispatch come from a process that may have died in the middle of one."""
    store.put("t", b"body")
    store.put("t", b"whole")
    end = log.end_offset
    path = disk.entries(Path("/store/commitlog"))[0].path
    disk.open(path, writable=True).pwrite(b"B", disk.read_whole(path).index(b"body"))
    fresh = CommitLog(log.log, log.tail, log.encoder, clock=ManualClock(), busy_ms=1000)
    found = [[len(batch) for batch in each.batches(0, end)] for each in (log, fresh)]
    assert [sum(counts) for counts in found] == [2, 1]
