"""A store that follows another one: what it takes, what it refuses, and what readers beside it see."""

import errno
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.following import (
    READING,
    ROOT,
    SEGMENT,
    SETTINGS,
    MasterLog,
    contents,
    findings,
    follow,
    make_log,
    reader,
    whole,
)

import penstock
from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.durability.replica_file import Epoch, Replica, ReplicaFile
from penstock.durability.written_ranges import NO_END, Ranges, about_ranges, ranges_of, read_ranges
from penstock.errors import (
    ArgumentError,
    ConfigError,
    CorruptionError,
    FollowerError,
    GeometryError,
    OffsetError,
    StorageError,
    StoreClosedError,
    StoreFailedError,
    StoreLockedError,
)
from penstock.files import Files
from penstock.store.following import open_follower, promote
from penstock.testing import SimulatedDisk
from penstock.testing.control import InlineWorkers
from penstock_index.consume_queue import ConsumeQueueDispatcher

HISTORY = "ab" * 16


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return make_log(tmp_path_factory.mktemp("master") / "store")


def followed(log: MasterLog, root: Path, **more: Any) -> None:
    with follow(root, **more) as store:
        store.note_coverage(log.ranges)
        store.feed(0, log.raw)


def test_a_follower_has_the_masters_bytes_queues_and_keys(log: MasterLog, tmp_path: Path) -> None:
    make_log(tmp_path / "master")
    followed(log, tmp_path / "copy")
    with reader(tmp_path / "master") as one, reader(tmp_path / "copy") as other:
        assert contents(one) == contents(other)
        for number in (0, 7, 59):
            keys = [[m.body for m in store.find("t", f"k{number}")] for store in (one, other)]
            assert keys[0] == keys[1] != []
        assert findings(other) == []
    with follow(tmp_path / "copy") as store:
        assert store.recovery.state == "clean"
        assert store.digest(0, log.end) == hashlib.sha256(log.raw).digest()
        assert store.read(5, 1 << 20) == log.raw[5:SEGMENT]
        for wrong in (-1, log.end):
            with pytest.raises(OffsetError):
                store.read(wrong, 1)
        for start, stop in ((-1, 5), (5, 4), (0, log.end + 1)):
            with pytest.raises(OffsetError):
                store.digest(start, stop)


@pytest.mark.parametrize("settings", [{}, {"flush": "sync"}, {"write": "file"}, {"write": "transient-pool"}])  # fmt: skip
def test_readers_beside_it_see_whole_batches_only(log: MasterLog, settings: dict[str, Any]) -> None:
    disk, workers = SimulatedDisk(), InlineWorkers()
    store = follow(disk=disk, workers=workers, **settings)
    seen = 0
    for at in range(0, log.end, 300):
        store.feed(at, log.raw[at : at + 300])
        store.flush()
        workers.run("penstock-follow")
        assert store.visible_offset == whole(log, store.end_offset)
        assert (store.held_from is None) == (store.visible_offset == store.end_offset)
        if store.held_from is not None:
            seen += 1
            with reader(disk=disk) as found:
                batch = [body for (topic, _), bodies in contents(found).items() if topic == "b" for body in bodies]  # fmt: skip
                assert len(batch) % 9 == 0
    assert seen > 10
    store.close()


@pytest.mark.parametrize("flushes", [False, True])
def test_a_part_of_a_batch_is_not_kept_by_a_close(log: MasterLog, flushes: bool) -> None:
    disk = SimulatedDisk()
    first, last = log.batches[2]
    store = follow(disk=disk)
    store.feed(0, log.raw[: last - 1])
    if flushes:
        assert store.flush() > first
    assert store.held_from == first
    store.close()
    with reader(disk=disk) as found:
        assert findings(found) == []
    with follow(disk=disk) as store:
        assert (store.recovery.state, store.end_offset) == ("clean", first)
        assert store.held_from is None
        store.feed(first, log.raw[first : last - 1])
        assert store.promote().epochs == (Epoch(epoch=1, start_offset=first),)
    with pytest.raises(StoreClosedError):
        store.flush()
    with penstock.open(ROOT, files=disk, environ={}, clock=disk.clock, spawn=InlineWorkers(), **SETTINGS) as master:  # fmt: skip
        assert master.recovery is not None
        assert master.recovery.log_end == first


def test_wrong_bytes_are_named_and_none_of_the_call_is_appended(log: MasterLog) -> None:
    store = follow(disk=SimulatedDisk())
    store.note_coverage(log.ranges)
    store.feed(0, log.raw[: log.begins[5]])
    end = store.end_offset
    wrong = bytearray(log.raw[end : log.begins[12]])
    wrong[log.begins[8] - end + 100] ^= 1
    with pytest.raises(CorruptionError, match="the copied log is corrupt") as raised:
        store.feed(end, bytes(wrong))
    assert raised.value.position == log.begins[8]
    assert (store.end_offset, store.next_offset, store.failure) == (end, end, None)
    with pytest.raises(ArgumentError, match="whole records"):
        store.append(end, log.raw[end : log.begins[8] - 1])
    assert store.append(end, log.raw[end : log.begins[8]]) == log.begins[8]
    with pytest.raises(OffsetError):
        store.append(end, log.raw[end : log.begins[8]])
    store.close()


def test_only_a_follower_writes_a_store_that_follows(log: MasterLog, tmp_path: Path) -> None:
    root = tmp_path / "store"
    replica = Replica(history=HISTORY, role="follower", master="host:10912", master_kind="penstock")
    with follow(root, replica=replica) as store:
        assert store.replica == replica
        with pytest.raises(FollowerError, match="follows host:10912") as raised:
            penstock.open(root, environ={}, **READING)
        assert (raised.value.path, raised.value.master) == (root, "host:10912")
        with pytest.raises(StoreLockedError):
            follow(root)
        newer = attrs.evolve(replica, epochs=(Epoch(epoch=1, start_offset=0),))
        store.note_replica(newer)
        with pytest.raises(ArgumentError):
            store.note_replica(newer.promoted(0))
        assert (store.stats()["epoch"], store.stats()["role"]) == (1, "follower")
    with pytest.raises(FollowerError, match="a repair is refused"):
        penstock.repair(root, environ={}, apply=True, **READING)
    assert penstock.repair(root, environ={}, **READING).steps == ()
    with pytest.raises(ArgumentError):
        follow(root, replica=newer.promoted(0))
    assert ReplicaFile(Files(), root).read() == newer
    assert promote(root, environ={}, **SETTINGS).epoch == 2
    with penstock.open(root, environ={}, **READING) as master:
        master.put("t", b"x")
    with pytest.raises(ConfigError, match="is a master \\(epoch 2\\)"):
        follow(root)
    # The loser of two masters is told to follow.
    with follow(root, replica=newer) as store:
        assert store.end_offset > 0


def test_a_store_that_was_never_replicated_may_follow(log: MasterLog, tmp_path: Path) -> None:
    make_log(tmp_path / "store", 3)
    with follow(tmp_path / "store") as store:
        assert len(store.replica.history) == 32
        end = store.end_offset
        assert store.min_offset == 0 < end
    with pytest.raises(FollowerError, match="follows another store"):
        penstock.open(tmp_path / "store", environ={})


def test_other_segment_sizes_are_refused_with_both_numbers(tmp_path: Path) -> None:
    follow(tmp_path / "store").close()
    with pytest.raises(GeometryError, match=f"{2 * SEGMENT}.*{SEGMENT}|{SEGMENT}.*{2 * SEGMENT}"):
        open_follower(tmp_path / "store", environ={}, segment_bytes=2 * SEGMENT)
    with open_follower(tmp_path / "new", environ={}, segment_bytes=2 * SEGMENT) as store:
        assert store.segment_bytes == 2 * SEGMENT


def test_a_topic_is_removed_where_the_master_removed_it(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with penstock.open(tmp_path / "master", environ={}, **SETTINGS) as master:
        for number in range(10):
            master.put("a", b"%d" % number)
        before = master.put("b", b"kept")
        master.remove_topic("a")
        at = before.log_offset + before.size
        last = master.put("a", b"new")
        end = last.log_offset + last.size
    raw = next((tmp_path / "master" / "commitlog").iterdir()).read_bytes()[:end]
    with follow(disk=disk) as store:
        store.feed(0, raw[: at - 1])
        with pytest.raises(OffsetError):
            store.remove_topic("a", at)
        store.feed(at - 1, raw[at - 1 : at])
        store.remove_topic("a", at)
        store.feed(at, raw[at:])
        # Told again, as after a new connection.
        store.remove_topic("a", at)
    with follow(disk=disk) as store, reader(disk=disk) as found:
        assert store.end_offset == end
        assert contents(found) == {("a", 0): [b"new"], ("b", 0): [b"kept"]}
        assert found.topic_life("a") == 1
        assert findings(found) == []


def test_who_wrote_the_records_is_told_or_unknown(log: MasterLog, tmp_path: Path) -> None:
    middle = log.begins[30]
    root = tmp_path / "store"
    with follow(root) as store:
        # As from a RocketMQ master.
        store.feed(0, log.raw[:middle])
        assert store.ranges.written == ()
        assert store.ranges.perhaps == ((0, NO_END),)
    with follow(root) as store:
        told = ranges_of(about_ranges(attrs.evolve(log.ranges, gaps=((SEGMENT, 2 * SEGMENT),))))
        store.note_coverage(told)
        store.note_coverage(told)
        assert [(r.start, r.stop) for r in store.ranges.written] == [(middle, NO_END)]
        assert store.ranges.gaps == ((SEGMENT, 2 * SEGMENT),) if middle <= SEGMENT else ()
        store.feed(middle, log.raw[middle:])
    with follow(root) as store:
        # The next master may be another one.
        assert [(r.start, r.stop) for r in store.ranges.written] == [(middle, log.end)]
        store.note_coverage(log.ranges)
        assert [(r.start, r.stop) for r in store.ranges.written] == [(middle, NO_END)]
        store.note_coverage(Ranges())
        assert [(r.start, r.stop) for r in store.ranges.written] == [(middle, log.end)]
        assert read_ranges(Files(), root) == store.ranges
        store.promote()
    with penstock.open(root, environ={}, **{**SETTINGS, "log.checksum": "crc32"}) as master:
        master.put("t", b"own")
    found = read_ranges(Files(), root)
    assert found is not None
    assert [(r.start, r.checksum) for r in found.written] == [(middle, "crc32+record"), (log.end, "crc32")]  # fmt: skip


def test_offsets_of_groups_are_not_changed_by_a_follower(log: MasterLog, tmp_path: Path) -> None:
    followed(log, tmp_path / "store")
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    # Further than the queue: the log is not here yet.
    path.write_text('{"offsetTable": {"t@g": {"0": 999}}}')
    followed_again = follow(tmp_path / "store")
    followed_again.close()
    assert "999" in path.read_text()
    promote(tmp_path / "store", environ={}, **SETTINGS)
    with penstock.open(tmp_path / "store", environ={}, **READING) as master:
        assert master.committed_offset("g", "t") == 30


def test_after_a_failed_sync_nothing_more_is_taken(log: MasterLog) -> None:
    disk = SimulatedDisk()
    store = follow(disk=disk)
    store.feed(0, log.raw[:5000])
    disk.plan.fail("sync", errno.EIO, path="commitlog")
    with pytest.raises(StoreFailedError):
        store.flush()
    assert store.failure is not None
    with pytest.raises(StoreFailedError):
        store.feed(store.next_offset, b"x")
    disk.plan.heal()
    with pytest.raises(StoreFailedError):
        store.close()
    store.close()
    with follow(disk=disk) as again:
        again.feed(again.end_offset, log.raw[again.end_offset :])


def test_the_log_of_a_follower_has_no_messages_of_its_own(log: MasterLog, tmp_path: Path) -> None:
    followed(log, tmp_path / "store", **{"index.feed": "direct"})
    assert b"".join(
        each.read_bytes() for each in sorted((tmp_path / "store" / "commitlog").iterdir())
    ).rstrip(b"\0") == log.raw.rstrip(b"\0")


def test_its_lock_is_kept_as_long_as_a_thread_may_write(
    log: MasterLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close that gave up on a thread released the lock, and the thread went on beside the next process that wrote."""
    gate, entered = threading.Event(), threading.Event()
    dispatch = ConsumeQueueDispatcher.dispatch

    def hang(self: ConsumeQueueDispatcher, batch: DispatchBatch) -> None:
        entered.set()
        assert gate.wait(60)
        dispatch(self, batch)

    monkeypatch.setattr(ConsumeQueueDispatcher, "dispatch", hang)
    store = follow(tmp_path / "f", **{"plugins.close_limit_ms": 50})
    store.feed(0, log.raw[:5000])
    assert entered.wait(30)
    with pytest.raises(StorageError, match="did not end"):
        store.close()
    with pytest.raises(StoreLockedError):
        follow(tmp_path / "f")
    gate.set()
    deadline = time.monotonic() + 30
    while store._lock.is_used:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    with follow(tmp_path / "f") as again:
        assert again.feed(again.end_offset, log.raw[again.end_offset :]) == len(log.raw)


def test_a_child_that_is_forked_leaves_the_store_to_its_parent(
    log: MasterLog, tmp_path: Path
) -> None:
    with follow(tmp_path / "f") as store:
        store.feed(0, log.raw[:5000])
        child = os.fork()
        if not child:
            store.close()
            try:
                store.feed(store.next_offset, log.raw[store.next_offset :])
            except StoreClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (tmp_path / "f" / "abort").exists()
        assert store.feed(store.next_offset, log.raw[store.next_offset :]) == len(log.raw)
