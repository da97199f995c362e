"""A copy becomes a master in one durable step; a log that differs is cut where it parts, and loses no byte."""

import pytest
from tests.replicas.logs import (
    ROOT,
    SEGMENT,
    SETTINGS,
    MasterLog,
    accepted,
    check_copy,
    contents,
    crashed,
    crashes,
    feed,
    findings,
    follower,
    identity,
    images_of,
    master,
    on,
    raw_log,
    reader,
)

import penstock
from penstock import ArgumentError, FollowerError, StorageError, StoreLockedError
from penstock.contracts import FollowBegin, Replica
from penstock.durability.replica_file import read_replica
from penstock.format.names import LOST_END
from penstock.testing import ManualClock, SimulatedDisk
from penstock.testing.platter import Survival

STORE_ID = ROOT / "penstock" / "store-id"


def copied(log: MasterLog, torn: bytes | None = None) -> SimulatedDisk:
    """Return the disk of a copy with everything, closed; or killed, with some bytes after the end of its log."""
    disk = SimulatedDisk()
    with accepted(disk, log, at=0) as store:
        feed(store, log, log.end, 5000)
        image = disk.image()
    if torn is not None:
        disk = crashed(image, Survival.PROCESS)
        last = disk.entries(ROOT / "commitlog")[-1].path
        with disk.open(last, writable=True) as file:
            file.pwrite(torn, log.end - int(last.name))
            file.sync_all()
    return disk


def promote(disk: SimulatedDisk) -> Replica:
    return penstock.promote(ROOT, **on(disk, **SETTINGS))


def cut(disk: SimulatedDisk, at: int) -> penstock.FollowedStore:
    return penstock.open_follower(ROOT, cut_at=at, **on(disk, **SETTINGS))


def saved(disk: SimulatedDisk) -> bytes:
    """Return the bytes in `penstock/saved`, in the order of the log."""
    entries = disk.entries(ROOT / "penstock" / "saved")
    entries.sort(key=lambda each: (each.name[0].isdigit(), each.name))
    return b"".join(disk.read_whole(each.path) for each in entries)


def places(log: MasterLog) -> list[int]:
    """Return log offsets of all kinds: at records and within, in batches, at segments' begins and in filler."""
    first, last = log.batches[3]
    around = SEGMENT - 1, SEGMENT, SEGMENT + 1
    return [0, 1, *log.begins[5:7], first + 1, last - 1, *around, log.end - 1]


@pytest.mark.parametrize("torn", [None, b"", b"a torn tail"])
def test_a_cut_log_goes_on_and_what_it_lost_is_saved(log: MasterLog, torn: bytes | None) -> None:
    for at in places(log):
        disk = copied(log, torn)
        disk.write_whole(STORE_ID, b"%016x\n" % 7)
        with cut(disk, at) as store:
            end = store.end_offset
            assert end <= at
            assert at not in log.begins or end == at
            assert saved(disk).rstrip(b"\0") == (log.raw[end:] + (torn or b"")).rstrip(b"\0")
            assert store.recovery is not None
            assert store.recovery.saved_to is not None
            # What was delivered, or acknowledged, may be counted in what the log lost.
            assert disk.exists(ROOT / LOST_END)
            assert disk.read_whole(STORE_ID) != b"%016x\n" % 7
            store.accept(identity(), log.ranges)
            feed(store, log, log.end)
        check_copy(disk, log)


def test_a_reader_beside_it_reads_on(log: MasterLog) -> None:
    """The first read after a cut found another file, and its message was taken for removed."""
    disk = copied(log)
    with reader(disk) as old:
        assert contents(old) == log.queues
        with cut(disk, log.begins[60]), reader(disk) as new:
            for place, bodies in contents(new).items():
                got = [message.body for message in old.scan(place[0], queue=place[1])]
                assert got[: len(bodies)] == bodies


def test_a_promoted_store_is_cut_only_if_it_is_expected_and_takes_messages_then(log: MasterLog) -> None:  # fmt: skip
    """It was promoted a moment before, and would have been made a copy again."""
    disk = copied(log)
    promote(disk)
    with pytest.raises(StorageError, match="meanwhile"):
        penstock.open_follower(ROOT, cut_at=0, expected=identity(), **on(disk, **SETTINGS))
    assert raw_log(disk)[: log.end] == log.raw
    with cut(disk, SEGMENT) as store:
        end = store.end_offset
        assert store.replica is not None
        assert store.replica.role == "master"
        assert store.replica.epochs[-1].start == end
    with master(disk, clock=ManualClock(1000)) as again:
        assert again.put("t", b"new", queue=0).log_offset == end
        *_, before, new = again.scan("t", queue=0)
        assert new.store_time_ms >= before.store_time_ms
        assert not findings(again)


def test_a_crash_loses_nothing_that_is_not_saved(log: MasterLog) -> None:
    disk, at = copied(log), log.begins[len(log.begins) // 2]
    for left in crashes(images_of(disk, lambda: cut(disk, at).close()), "cut"):
        with follower(left) as store:
            end = store.end_offset
            assert end >= at
            assert store.read(0, 1000) == log.raw[:1000]
            assert raw_log(left)[:end] == log.raw[:end]
            kept = saved(left) if left.exists(ROOT / "penstock" / "saved") else b""
            assert end == log.end or log.raw[end:].rstrip(b"\0") in kept
            store.accept(identity(), log.ranges)
            feed(store, log, log.end)
        check_copy(left, log)


def test_a_cut_before_the_log_is_refused(log: MasterLog) -> None:
    disk = SimulatedDisk()
    accepted(disk, log, at=SEGMENT).close()
    with pytest.raises(ArgumentError, match="cut_at"):
        cut(disk, SEGMENT - 1)


def test_a_crash_leaves_a_follower_or_a_master_and_nothing_between(log: MasterLog) -> None:
    (begin, middle), disk = log.batches[2], SimulatedDisk()
    with accepted(disk, log, at=0) as copy:
        copy.feed(0, log.raw[: middle - 1])
    images = images_of(disk, lambda: promote(disk))
    replica = read_replica(disk, ROOT)
    assert replica is not None
    # What a master never finished is not in it.
    assert (replica.role, replica.master, replica.epochs[-1].start) == ("master", None, begin)
    assert replica.epochs[-1].by == replica.store
    with master(disk) as store:
        assert store.put("t", b"new", queue=0).log_offset == begin
        assert not findings(store)
    roles = set[str]()
    for disk in crashes(images, "promote"):
        replica = read_replica(disk, ROOT)
        assert replica is not None
        roles.add(replica.role)
        if replica.role == "follower":
            with pytest.raises(FollowerError):
                master(disk)
            assert promote(disk).epochs[-1].number == replica.epochs[-1].number + 1
        with master(disk) as store:
            assert store.stats()["log_end_offset"] <= begin
            store.put("t", b"new", queue=0)
            assert not findings(store)
    assert roles == {"follower", "master"}


def test_only_a_follower_that_nobody_uses_and_a_master_has_accepted_is_promoted(log: MasterLog) -> None:  # fmt: skip
    """One without a history was refused by its master later, as the store of another one."""
    disk = SimulatedDisk()
    follower(disk, begin=FollowBegin(segment_bytes=SEGMENT, log_offset=0)).close()
    with pytest.raises(StorageError, match="nothing of a master yet"):
        promote(disk)
    with accepted(disk, log) as copy:
        copy.feed(0, log.raw[: log.batches[0][0]])
        with pytest.raises(StoreLockedError):
            promote(disk)
    promote(disk)
    with pytest.raises(StorageError, match="no copy that follows"):
        promote(disk)
