"""A copy becomes a master in one durable step, and takes messages then."""

import pytest
from tests.lanes import cases
from tests.replicas.logs import (
    ROOT,
    SEGMENT,
    SETTINGS,
    MasterLog,
    accepted,
    crashed,
    findings,
    follower,
    make_log,
    master,
    on,
)

import penstock
from penstock import FollowerError, StorageError, StoreLockedError
from penstock.contracts import FollowBegin, Replica
from penstock.durability.replica_file import read_replica
from penstock.testing import SimulatedDisk
from penstock.testing.platter import Image, Survival


@pytest.fixture(scope="module")
def log() -> MasterLog:
    return make_log(40)


def promote(disk: SimulatedDisk) -> Replica:
    return penstock.promote(ROOT, **on(disk, **SETTINGS))


def promoting(log: MasterLog, stop: int) -> tuple[SimulatedDisk, list[Image]]:
    """Promote a copy that has the bytes before `stop`; returns its disk, and an image before each call."""
    disk, images = SimulatedDisk(), list[Image]()
    store = accepted(disk, log, at=0)
    store.feed(0, log.raw[:stop])
    store.close()
    disk.plan.watch = lambda _call, _path: images.append(disk.image())
    promote(disk)
    disk.plan.watch = None
    return disk, [*images, disk.image()]


def test_a_promoted_copy_takes_messages_and_begins_an_epoch(log: MasterLog) -> None:
    begin, middle = log.batches[2]
    disk, _ = promoting(log, middle - 1)
    replica = read_replica(disk, ROOT)
    assert replica is not None
    assert (replica.role, replica.master) == ("master", None)
    # What a master never finished is not in it.
    assert replica.epochs[-1].start == begin
    assert replica.epochs[-1].by == replica.store
    with master(disk) as store:
        assert store.put("t", b"new", queue=0).log_offset == begin
        assert not findings(store)


def test_a_crash_leaves_a_follower_or_a_master_and_nothing_between(log: MasterLog) -> None:
    begin, middle = log.batches[2]
    _, images = promoting(log, middle - 1)
    roles = []
    for number, survival in cases(
        [(n, s) for n in range(len(images)) for s in Survival], "promote"
    ):
        disk = crashed(images[number], survival, number)
        replica = read_replica(disk, ROOT)
        assert replica is not None
        roles.append((number, replica.role))
        if replica.role == "follower":
            with pytest.raises(FollowerError):
                master(disk)
            assert promote(disk).epochs[-1].number == replica.epochs[-1].number + 1
        with master(disk) as store:
            assert store.stats()["log_end_offset"] <= begin
            store.put("t", b"new", queue=0)
            assert not findings(store)
    assert {role for _, role in roles} == {"follower", "master"}


def test_only_a_follower_that_nobody_uses_is_promoted(log: MasterLog) -> None:
    disk = SimulatedDisk()
    with accepted(disk, log, at=0) as copy:
        copy.feed(0, log.raw[: log.batches[0][0]])
        with pytest.raises(StoreLockedError):
            promote(disk)
    promote(disk)
    with pytest.raises(StorageError, match="no copy that follows"):
        promote(disk)


def test_a_copy_that_no_master_has_accepted_is_not_promoted() -> None:
    """It had no history, and its master was refused later, as the store of another one."""
    disk = SimulatedDisk()
    follower(disk, begin=FollowBegin(segment_bytes=SEGMENT, log_offset=0)).close()
    with pytest.raises(StorageError, match="nothing of a master yet"):
        promote(disk)
