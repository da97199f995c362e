"""Who waits for a sync is told once, and a sync that failed is the last one."""

import errno
from pathlib import Path

import pytest

from penstock.durability import log_flusher
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


def test_a_progress_file_that_cannot_be_written_fails_the_store_though_the_log_is_synced(
    store: Store,
) -> None:
    flusher = flusher_of(store)
    store.put_many(messages(3))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    flusher.on_flushed = full
    count = flusher.count
    with pytest.raises(StoreFailedError, match="the log is synced, but the progress file"):
        flusher.flush()
    assert flusher.failure is not None
    assert flusher.flushed_offset == flusher.failure.durable_offset == flusher.wrote_offset
    assert flusher.count == count + 1


@pytest.mark.parametrize("kind", ["waits", "nobody waits", "copied"])
def test_synced_bytes_are_read_back_where_somebody_waits_for_them(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were copied from another log may end within a record."""
    flusher, looked = flusher_of(store), list[tuple[int, int]]()
    store.put_many(messages(3))

    def lost(_: object, start: int, stop: int) -> int:
        looked.append((start, stop))
        return 50

    monkeypatch.setattr(log_flusher, "first_unreadable", lost)
    flusher._log.has_copies = kind == "copied"
    if kind != "nobody waits":
        flusher.add_waiter(flusher.wrote_offset, lambda: None)
    if kind != "waits":
        assert flusher.flush() == flusher.wrote_offset
        assert looked == []
        return
    with pytest.raises(StoreFailedError, match="at log offset 50 cannot be read back") as raised:
        flusher.flush()
    assert looked == [(0, flusher.wrote_offset)]
    assert (raised.value.durable_offset, flusher.flushed_offset, flusher.count) == (0, 0, 0)


def test_synced_bytes_that_the_disk_does_not_give_back_fail_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = flusher_of(store)
    store.put_many(messages(3))

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(log_flusher, "first_unreadable", broken)
    flusher.add_waiter(flusher.wrote_offset, lambda: None)
    with pytest.raises(StoreFailedError, match="synced bytes cannot be read back"):
        flusher.flush()
    assert flusher.flushed_offset == 0


def test_a_commit_that_fails_is_the_failure_of_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher, failures = flusher_of(store), list[StoreFailedError]()
    flusher.on_failed = failures.append
    store.put_many(messages(1))
    assert flusher.commit() == flusher.wrote_offset == flusher.committed_offset

    def broken() -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(flusher._log.log, "commit", broken)
    with pytest.raises(StoreFailedError, match="could not be passed to the system") as raised:
        flusher.commit()
    assert failures == [raised.value]
    with pytest.raises(StoreFailedError):
        store.put("t", b"refused")


def test_without_a_thread_of_the_kernel_puts_are_synced_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_free(*_: object) -> None:
        raise OSError(errno.EMFILE, "none is free")

    monkeypatch.setattr(log_flusher, "SyncGate", none_free)
    with open_store(tmp_path / "s", flush="sync", retention=[]) as store:
        assert store.put("t", b"x").log_offset == 0
        flusher = flusher_of(store)
        assert (flusher._gate, flusher.flushed_offset) == (None, flusher.wrote_offset)
    assert "the sync thread could not be started" in caplog.text


def test_a_thread_of_the_kernel_is_started_once_there_is_a_descriptor_and_a_crew(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path / "s", flush="none", retention=[]) as store:
        assert flusher_of(store)._gate is None
        store.put("t", b"x")
        assert flusher_of(store)._gate is not None
        alone = LogFlusher(flusher_of(store)._log, 0)
        alone.take_in()
        assert (alone._gate, alone._seen_to) == (None, flusher_of(store)._seen_to)


def test_a_flush_that_waited_while_the_sync_thread_took_over_goes_to_that_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "s") as store:
        store.put("t", b"x")
        flusher = flusher_of(store)
        gate, flusher._gate = flusher._gate, None
        assert gate is not None
        lock = flusher._flushing

        class Late:
            """The lock that the taking over holds when the flush comes."""

            def __enter__(self) -> None:
                lock.acquire()
                flusher._gate = gate

            def __exit__(self, *_: object) -> None:
                lock.release()

        monkeypatch.setattr(flusher, "_flushing", Late())
        monkeypatch.setattr(flusher, "_sync", lambda: pytest.fail("two threads sync the log"))
        store.put("t", b"y")
        assert flusher.flush() == flusher.wrote_offset
        monkeypatch.undo()
