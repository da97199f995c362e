"""The log as a replicator sees it: what may be copied, and when it was stored."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.replicators import ScriptedReplicator

from penstock.errors import OffsetError
from penstock.store.copied_log import CopiedLog
from penstock.store.store import Store
from penstock.testing import InlineWorkers, ManualClock, SimulatedDisk, messages, open_store

OPTIONS: dict[str, Any] = {"replicate": "scripted", "replicate.scripted.waits": False}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with open_store(
        tmp_path / "s", strategies=[ScriptedReplicator], clock=clock, **OPTIONS
    ) as opened:
        yield opened


def log_of(store: Store) -> CopiedLog:
    assert store._engine is not None
    assert store._engine.copying is not None
    return store._engine.copying.log


def test_all_of_the_log_can_be_read_and_lent(store: Store, tmp_path: Path) -> None:
    store.put_many(messages(2000, body_bytes=200))
    log = log_of(store)
    end = log.visible_offset
    assert end == log.wrote_offset == store.stats()["log_end_offset"]
    files = sorted((tmp_path / "s" / "commitlog").iterdir())
    assert len(files) > 2
    raw = b"".join(file.read_bytes() for file in files)
    at, read, lent = 0, b"", b""
    while data := log.read(at, 10_000):
        assert at // log.segment_bytes == (at + len(data) - 1) // log.segment_bytes
        read += data
        at += len(data)
    at = 0
    while at < end:
        with log.lend_file(at) as (descriptor, position, size):
            assert descriptor is not None
            lent += os.pread(descriptor, size, position)
            at += size
    assert read == lent == raw[:end]


def test_at_the_end_there_is_nothing_and_after_it_an_error(store: Store) -> None:
    store.put("t", b"x")
    log = log_of(store)
    assert log.read(log.visible_offset, 100) == b""
    with log.lend_file(log.visible_offset) as lent:
        assert lent == (None, 0, 0)
    for at in (-1, log.visible_offset + 1):
        with pytest.raises(OffsetError):
            log.read(at, 1)
        with pytest.raises(OffsetError), log.lend_file(at):
            pass
    assert log.read(0, -5) == b""


def test_what_retention_has_deleted_is_an_error(store: Store) -> None:
    store.put_many(messages(1000, body_bytes=200))
    store.flush()
    log = log_of(store)
    assert store.discard_before(log_offset=log.segment_bytes) == 1
    assert log.min_offset == log.segment_bytes
    with pytest.raises(OffsetError, match="log offset of a copy"):
        log.read(0, 10)
    assert log.time_ms_at(0) == 0


def test_what_readers_do_not_see_is_not_copied() -> None:
    disk, workers = SimulatedDisk(), InlineWorkers()
    with open_store(
        Path("/s"), files=disk, spawn=workers, strategies=[ScriptedReplicator], flush="sync", **OPTIONS,
    ) as store:  # fmt: skip
        receipt = store.put("t", b"one")
        assert log_of(store).visible_offset == receipt.size
        with log_of(store).lend_file(0) as lent:
            assert lent.descriptor is None
            assert lent.size == receipt.size


def test_a_time_is_that_of_the_record_or_of_an_earlier_one(store: Store, clock: ManualClock) -> None:  # fmt: skip
    log = log_of(store)
    assert log.time_ms_at(0) == 0
    begun_ms = clock.now_ms
    receipts = []
    for _ in range(20):
        clock.now_ms += 1000
        receipts.append(store.put("t", b"x" * 50))
    for receipt in receipts:
        assert log.time_ms_at(receipt.log_offset) == receipt.store_time_ms
        # Within the record: an earlier record, at worst the first of the file.
        assert begun_ms < log.time_ms_at(receipt.log_offset + 1) <= receipt.store_time_ms
    assert log.time_ms_at(log.visible_offset) <= clock.now_ms
    assert log.time_ms_at(log.visible_offset + 1) == 0


def test_times_are_remembered_for_offsets_within_records(store: Store) -> None:
    store.put_many(messages(2000))
    of_store = log_of(store)
    end = of_store.visible_offset
    # Without the times that the store's own threads note.
    log = CopiedLog(store.path, store.files, of_store._log, of_store._flusher, of_store._removed_topics)  # fmt: skip
    log.visible = of_store.visible
    for number in range(10_000):
        log.note_time(end - 1_000_000 + 100 * number, 1_000_000 + 60 * number)
    log.note_time(5, 7)
    assert log.time_ms_at(end - 49) == 1_000_000 + 60 * 9999
    assert log.time_ms_at(end - 951) == 1_000_000 + 60 * 9990
    assert len(log._times[0]) <= 2048


def test_removed_topics_are_told(store: Store) -> None:
    store.put("t", b"x")
    store.flush()
    store.remove_topic("t")
    assert log_of(store).removed_topics() == [("t", log_of(store).visible_offset)]
