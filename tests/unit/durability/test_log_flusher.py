"""Who waits for a sync is told once, and a sync that failed is the last one."""

import errno
from pathlib import Path

import pytest

from penstock.durability.log_flusher import LogFlusher
from penstock.errors import StoreFailedError
from penstock.store.store import Store
from penstock.testing import ManualWorkers, SimulatedDisk, messages, open_store

ROOT = Path("/store")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Store:
    return open_store(ROOT, files=disk, spawn=ManualWorkers(), flush="none", retention=[])


def flusher_of(store: Store) -> LogFlusher:
    assert store._engine is not None
    return store._engine.flusher


def test_a_waiter_is_told_once_all_before_its_offset_is_durable(store: Store) -> None:
    flusher, told = flusher_of(store), list[str]()
    store.put_many(messages(3))
    flusher.add_waiter(flusher.wrote_offset, lambda: told.append("end"))
    flusher.add_waiter(flusher.wrote_offset + 1, lambda: told.append("beyond"))
    assert told == []
    assert flusher.flush() == flusher.flushed_offset == flusher.wrote_offset
    assert told == ["end"]
    flusher.add_waiter(flusher.flushed_offset, lambda: told.append("late"))
    assert told == ["end", "late"]
    store.put_many(messages(1))
    flusher.flush()
    assert told == ["end", "late", "beyond"]


def test_a_sync_with_nothing_to_do_is_none(store: Store) -> None:
    flusher = flusher_of(store)
    store.put_many(messages(3))
    flusher.flush()
    count = flusher.count
    flusher.flush()
    assert flusher.count == count


def test_after_a_failed_sync_nothing_is_synced_and_everybody_hears_the_one_error(
    store: Store, disk: SimulatedDisk
) -> None:
    flusher, told, failures = flusher_of(store), list[int](), list[StoreFailedError]()
    flusher.on_failed = failures.append
    store.put_many(messages(3))
    flusher.add_waiter(flusher.wrote_offset, lambda: told.append(1))
    durable = flusher.flushed_offset
    disk.plan.fail("sync", errno.EIO, path="commitlog", times=1)
    with pytest.raises(StoreFailedError, match="a sync of the log failed") as raised:
        flusher.flush()
    assert (told, failures) == ([1], [raised.value])
    assert (raised.value.durable_offset, flusher.flushed_offset) == (durable, durable)
    for again in (flusher.flush, flusher.commit, flusher.check):
        with pytest.raises(StoreFailedError) as second:
            again()
        assert second.value is raised.value
    assert flusher.outcome(flusher.wrote_offset) is raised.value
    assert flusher.outcome(durable) is None


def test_of_two_failures_the_first_counts(store: Store) -> None:
    flusher = flusher_of(store)
    first = flusher.fail("the first")
    assert flusher.fail("the second") is first
    assert flusher.lost(7) is first


def test_what_the_writer_lost_is_durable_no_more(store: Store) -> None:
    flusher = flusher_of(store)
    store.put_many(messages(3))
    flusher.flush()
    error = flusher.lost(100)
    assert (error.durable_offset, flusher.flushed_offset) == (100, 100)


def test_who_still_waits_at_the_close_is_told_that_it_was_closed(store: Store) -> None:
    flusher, told = flusher_of(store), list[int]()
    store.put_many(messages(3))
    flusher.add_waiter(flusher.wrote_offset, lambda: told.append(1))
    flusher.close()
    assert told == [1]
    assert "closed before the log was synced" in str(flusher.outcome(flusher.wrote_offset))


def test_a_wait_asks_for_a_sync_and_ends_with_it_or_in_time(store: Store) -> None:
    flusher = flusher_of(store)
    store.put_many(messages(3))
    end = flusher.wrote_offset
    assert not flusher.wait(end, 1, lambda: None)

    def request() -> None:
        flusher.flush()

    assert flusher.wait(end, 60_000, request)
    assert flusher.wait(end, 0, lambda: pytest.fail("it is durable already"))
