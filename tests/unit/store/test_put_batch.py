"""An encoded batch on its way into the log: whole or not at all, and what is known of it afterwards."""

import errno
from pathlib import Path

import pytest

from penstock._kernel import Batch
from penstock.errors import DiskFullError, MessageTooLargeError, StoreFailedError
from penstock.message import Durability, Message, PutStatus
from penstock.store.engine import Engine
from penstock.store.put_batch import append_encoded
from penstock.testing import ManualWorkers, SimulatedDisk, open_store


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def engine(disk: SimulatedDisk) -> Engine:
    store = open_store(Path("/s"), files=disk, spawn=ManualWorkers(), write="file", flush="none", retention=[])  # fmt: skip
    assert store._engine is not None
    return store._engine


def batch_of(engine: Engine, *bodies: bytes) -> Batch:
    batch = Batch(engine.log.encoder)
    for body in bodies:
        batch.add(Message("t", body))
    return batch


def test_an_empty_batch_is_accepted_and_appends_nothing(engine: Engine) -> None:
    _, known = append_encoded(engine, batch_of(engine))
    assert known == (PutStatus.PUT_OK, Durability.ACCEPTED)
    assert engine.log.end_offset == 0


def test_an_atomic_batch_must_fit_into_one_segment(engine: Engine) -> None:
    bodies = [b"x" * 1000] * 80
    with pytest.raises(MessageTooLargeError, match="do not set atomic"):
        append_encoded(engine, batch_of(engine, *bodies), atomic=True)
    assert engine.log.end_offset == 0
    append_encoded(engine, batch_of(engine, *bodies))
    assert len(engine.log.log.segments) == 2


def test_without_room_nothing_counts(engine: Engine, disk: SimulatedDisk) -> None:
    append_encoded(engine, batch_of(engine, b"x"))
    end = engine.log.end_offset
    disk.plan.fail("pwrite", errno.ENOSPC, path="commitlog", times=1)
    with pytest.raises(DiskFullError):
        append_encoded(engine, batch_of(engine, b"y"))
    assert engine.log.end_offset == end


def test_a_disk_that_fails_stops_the_store(engine: Engine, disk: SimulatedDisk) -> None:
    append_encoded(engine, batch_of(engine, b"x"))
    disk.plan.fail("pwrite", errno.EIO, path="commitlog", times=1)
    for _ in range(2):
        with pytest.raises(StoreFailedError):
            append_encoded(engine, batch_of(engine, b"y"))


def test_the_largest_atomic_batch_leaves_room_for_a_blank_record(engine: Engine) -> None:
    room = engine.log.log.segment_bytes - 8
    small = batch_of(engine, b"")
    for size, fits in ((room, True), (room + 1, False)):
        batch = batch_of(engine, b"", b"x" * (size - 2 * small.size))
        assert batch.size == size
        if fits:
            _, known = append_encoded(engine, batch, atomic=True)
            assert known == (PutStatus.PUT_OK, Durability.ACCEPTED)
            assert engine.log.end_offset == room
            continue
        with pytest.raises(MessageTooLargeError) as raised:
            append_encoded(engine, batch, atomic=True)
        assert raised.value.limit == room
