"""A store that follows another one: what it takes and refuses, what readers beside it see, what a crash leaves."""

import errno
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.faults.interrupts import everywhere
from tests.lanes import SEED, rounds
from tests.replicas.fakes import data_frame
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
    make_log,
    master,
    raw_log,
    reader,
)

import penstock
from penstock import FollowedStore, Store
from penstock.contracts import Epoch, FollowBegin
from penstock.durability.replica_file import read_replica, write_status
from penstock.files import Files
from penstock.format.record import RecordFields, encode_record
from penstock.log.scan import batch_marks
from penstock.testing import ManualWorkers, SimulatedDisk
from penstock.testing.platter import Survival
from penstock_flush.policies import SyncFlush
from penstock_tools.cli.state import replica_of


def state_of(store: FollowedStore | Store) -> str:
    assert store.recovery is not None
    return store.recovery.state


def test_a_follower_has_the_masters_bytes_queues_and_keys(log: MasterLog) -> None:
    disk = SimulatedDisk()
    with accepted(disk, log, at=0) as store:
        feed(store, log, log.end, 5000)
        assert (store.min_offset, store.end_offset, store.shown_offset) == (0, log.end, log.end)
        assert store.flush() == store.flushed_offset == log.end
        assert store.digest(100, log.end) == log.digest(100, log.end)
        assert store.read(5, 1 << 20) == log.raw[5:SEGMENT]
        for start, stop in ((-1, 5), (5, 4), (0, log.end + 1)):
            with pytest.raises(penstock.OffsetError):
                store.digest(start, stop)
        with pytest.raises(penstock.OffsetError):
            store.read(log.end, 1)
    check_copy(disk, log)
    with reader(disk) as found:
        assert [m.body for m in found.find("k7", topic="t")] == [log.queues["t", 1][3]]
    with follower(disk) as store:
        assert (state_of(store), store.end_offset, store.replica) == ("clean", log.end, identity())  # fmt: skip
    with pytest.raises(penstock.StoreClosedError):
        store.flush()


def test_status_says_where_the_log_of_a_killed_copy_ends_and_how_old_it_is(log: MasterLog) -> None:
    """It said how far readers see, by which the copy that had less was promoted."""
    disk = SimulatedDisk()
    store = accepted(disk, log, at=0, spawn=ManualWorkers())
    feed(store, log, log.end)
    killed = crashed(disk.image(), Survival.PROCESS)
    write_status(disk, ROOT, {"text": "follows"})
    # The simulated clock is far from that of the machine.
    with reader(disk) as found:
        assert str(found_of(found, disk)["status"]["text"]).startswith("follows (")
    store.close()
    with reader(killed) as found:
        assert found.stats()["log_end_offset"] < log.end
        assert (found_of(found, killed)["log_end"], found_of(found, killed)["status"]) == (
            log.end,
            None,
        )


def found_of(store: Store, files: Files) -> dict[str, Any]:
    found = replica_of(store, files)
    assert found is not None
    return found


def test_records_are_checked_as_the_masters_are() -> None:
    """Plant: `accept` does not write the ranges."""
    plain, disk = make_log(20, **{"log.checksum": "crc32"}), SimulatedDisk()
    store = accepted(disk, plain, at=0)
    feed(store, plain, plain.begins[10])
    disk = crashed(disk.image(), Survival.PROCESS)
    store.close()
    with accepted(disk, plain) as store:
        feed(store, plain, plain.end)
    check_copy(disk, plain)


def test_the_masters_retention_may_move_on_before_the_first_byte_has_come(log: MasterLog) -> None:
    disk = SimulatedDisk()
    for at in (2 * SEGMENT, SEGMENT, SEGMENT):
        with accepted(disk, log, at=at) as store:
            assert (store.is_empty, store.min_offset, store.end_offset) == (True, at, at)
        with reader(disk) as found:
            assert findings(found) == []
    with accepted(disk, log) as store:
        feed(store, log, log.end)
        assert not store.is_empty
    assert raw_log(disk)[: log.end - SEGMENT] == log.raw[SEGMENT:]
    with reader(disk) as found:
        for place, bodies in contents(found).items():
            assert bodies == log.queues[place][-len(bodies) :]
    with pytest.raises(penstock.ArgumentError, match="records"):
        follower(disk, begin=FollowBegin(segment_bytes=SEGMENT, log_offset=0))


def test_nothing_is_made_without_a_begin_and_nothing_is_changed_without_acceptance(
    log: MasterLog, tmp_path: Path
) -> None:
    with pytest.raises(penstock.NotAStoreError):
        penstock.open_follower(tmp_path / "none", environ={})
    assert not (tmp_path / "none").exists()
    for begin, error in (
        (7, penstock.ArgumentTypeError), (FollowBegin(segment_bytes=SEGMENT, log_offset=5), penstock.ArgumentError),
    ):  # fmt: skip
        with pytest.raises(error):
            penstock.open_follower(tmp_path / "none", environ={}, begin=begin)  # type: ignore[arg-type] # the point
    disk = SimulatedDisk()
    master(disk).close()
    with pytest.raises(penstock.GeometryError):
        follower(disk, begin=FollowBegin(segment_bytes=2 * SEGMENT, log_offset=0))
    with follower(disk) as store:
        assert store.replica is None
        with pytest.raises(penstock.StorageError, match="no master has accepted"):
            store.feed(0, log.raw)
        for replica, ranges in (
            (identity(history="x"), log.ranges), (identity(), {}),
            (identity(epochs=(Epoch(0, 0, -1, "a"),)), log.ranges),
        ):  # fmt: skip
            with pytest.raises(penstock.ReplicationError, match="host:10912"):
                store.accept(replica, ranges)
        with pytest.raises(penstock.ArgumentError):
            store.accept(identity(role="master"), log.ranges)
    with master(disk) as again:
        assert state_of(again) == "clean"
        assert again.put("t", b"1").log_offset == 0


@pytest.mark.parametrize(
    "settings", [{}, {"flush": "sync"}, {"write": "file"}, {"write": "transient-pool"}]
)
def test_readers_beside_it_see_whole_batches_only(log: MasterLog, settings: dict[str, Any]) -> None:
    """Plants: `HeldBatches.shown` returns its argument; a batch is dropped as soon as it is whole."""
    disk, workers, seen = SimulatedDisk(), ManualWorkers(), 0
    with accepted(disk, log, at=0, spawn=workers, **settings) as store:
        for at in range(0, log.end, 300):
            if at % 900 == 0:
                store.flush()
            store.feed(at, log.raw[at : at + 300])
            workers.run("penstock-follow")
            assert store.shown_offset == log.whole(store.end_offset)
            if at % 900 == 0 or store.shown_offset < store.end_offset:
                with reader(disk) as found:
                    bodies = [b for (topic, _), each in contents(found).items() if topic == "b" for b in each]  # fmt: skip
                    seen += len(bodies)
                    assert len(bodies) % 9 == 0
    assert seen > 100


def test_marks_that_no_batch_has_hide_nothing_for_ever() -> None:
    """A broker may have written any number where the marks of batches are."""
    first, other = batch_marks(200, 900)
    raw = b""
    for number in (first, batch_marks(0, 900)[0], other, batch_marks(1, 4000)[1], -1, 0):
        fields = RecordFields(
            topic=b"t", body=b"x", log_offset=len(raw), queue_offset=len(raw) // 93, prepared_offset=number
        )  # fmt: skip
        raw += encode_record(fields)
    told = {"ranges": [], "perhaps": [[0, None]], "gaps": []}
    for size in (1, 100, 1000):
        disk = SimulatedDisk()
        store = follower(disk, begin=FollowBegin(segment_bytes=SEGMENT, log_offset=0))
        store.accept(identity(), told)
        for at in range(0, len(raw), size):
            store.feed(at, raw[at : at + size])
        assert store.shown_offset == store.end_offset == len(raw)
        store.close()
        with reader(disk) as found:
            assert found.stats()["log_end_offset"] == len(raw)


def test_wrong_bytes_are_named_and_none_of_the_call_is_appended(log: MasterLog) -> None:
    with accepted(SimulatedDisk(), log, at=0) as store:
        feed(store, log, log.begins[5])
        end = store.end_offset
        wrong = bytearray(log.raw[end : log.begins[12]])
        wrong[log.begins[8] - end + 100] ^= 1
        with pytest.raises(penstock.CorruptionError, match="the copied log is corrupt") as raised:
            store.feed(end, bytes(wrong))
        assert raised.value.position == log.begins[8]
        assert (store.end_offset, store.next_offset, store.failure) == (end, end, None)
        store.feed(end, log.raw[end : end + 40])
        for wrong_place in (end - 1, end + 1, end + 41):
            with pytest.raises(penstock.OffsetError):
                store.feed(wrong_place, b"x")
        assert (store.end_offset, store.next_offset) == (end, end + 40)
        # The bytes that wait are sent again, as after a new connection.
        store.feed(end, log.raw[end : log.begins[12] + 40])
        assert store.next_offset == log.begins[12] + 40
        store.forget()
        assert store.next_offset == store.end_offset == log.begins[12]


def test_what_lands_is_what_would_be_fed(log: MasterLog) -> None:
    """Twins get the same pieces, some of them changed: one takes frames in one step where it can, one is fed only."""
    outcomes = Counter[bool]()
    for number in range(rounds(gate=60, night=5000)):
        chance = Random(f"{SEED} {number}")
        settings = chance.choice(({}, {"flush": "sync", "write": "file"}))
        pieces = drawn_pieces(log, chance)
        found, landed_bytes = list[object](), 0
        for lands in (True, False):
            disk, error = SimulatedDisk(), ""
            store = accepted(disk, log, at=0, **settings)
            for at, data in pieces:
                try:
                    if lands and store.land(data_frame(at, data), at)[0]:
                        landed_bytes += len(data)
                    else:
                        store.feed(at, data)
                except (penstock.CorruptionError, penstock.OffsetError) as caught:
                    error = str(caught)
                    break
            store.flush()
            found.append((error, store.end_offset, store.shown_offset, store.next_offset))
            store.close()
            found.append((raw_log(disk), findings(reader(disk))))
        assert found[:2] == found[2:], number
        outcomes[landed_bytes > 0] += 1
    assert outcomes[True] > outcomes[False] > 0


def drawn_pieces(log: MasterLog, chance: Random) -> list[tuple[int, bytes]]:
    """Return the begin of a log in pieces, most of them whole records; a byte is changed in half of the draws."""
    ends = sorted(
        end + (chance.randrange(-9, 9) if chance.random() < 0.02 else 0)
        for end in chance.sample(log.begins[1:], len(log.begins) // 2)
    )
    found = [(start, log.raw[start:stop]) for start, stop in pairwise([0, *ends]) if start < stop]
    if chance.random() < 0.5:
        number = chance.randrange(len(found))
        at, data = found[number]
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        found[number] = at, bytes(changed)
    return found


def test_a_policy_hears_of_what_has_landed(log: MasterLog, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    monkeypatch.setattr(SyncFlush, "after_append", lambda _, end: heard.append(end))
    with accepted(SimulatedDisk(), log, at=0, flush="sync", write="file") as store:
        # The first record begins a file, which `land` does not.
        feed(store, log, first := log.begins[1])
        _, end = store.land(data_frame(first, log.raw[first : log.begins[2]]), first)
        assert heard == [first, end] == [first, log.begins[2]]


@pytest.mark.parametrize("settings", [{}, {"write": "file"}])
def test_a_full_disk_stops_a_follower_without_damage(
    log: MasterLog, settings: dict[str, Any]
) -> None:
    disk = SimulatedDisk()
    store, refused = accepted(disk, log, at=0, **settings), 0
    for number in range(10_000):
        if (at := store.next_offset) >= log.end:
            break
        if number % 3:
            for call in ("pwrite", "allocate"):
                disk.plan.fail(call, errno.ENOSPC, path="commitlog", times=1)
        try:
            store.feed(at, log.raw[at : at + 1000])
        except penstock.DiskFullError:
            refused += 1
            assert store.failure is None
            assert store.next_offset == store.end_offset
        disk.plan.heal()
    assert refused > 1
    store.close()
    check_copy(disk, log)


@pytest.mark.parametrize("settings", [{}, {"write": "file"}])
def test_an_interrupt_anywhere_in_a_feed_leaves_whole_records(
    log: MasterLog, settings: dict[str, Any]
) -> None:
    """Plants: `_append_piece` completes nothing; the stream is not set back to the log's end."""
    start = next(at for at in log.begins if at > SEGMENT - 2000)
    data = log.raw[start : SEGMENT + 2000]
    for interrupt in everywhere(rounds(gate=15, night=1), more_than=100):
        disk, stays_open = SimulatedDisk(), interrupt.number % 2
        with accepted(disk, log, at=0, **settings) as store:
            feed(store, log, start, 5000)
            if interrupt.during(lambda: store.feed(start, data)):
                store.forget()
            assert store.failure is None, interrupt.place
            if stays_open:
                feed(store, log, log.end, 5000)
        if not stays_open:
            with accepted(disk, log, **settings) as store:
                end = store.end_offset
                assert raw_log(disk).rstrip(b"\0") == log.raw[:end].rstrip(b"\0"), interrupt.place
                feed(store, log, log.end, 5000)
        check_copy(disk, log, interrupt.place)


def test_on_a_real_disk_a_child_takes_nothing_and_readers_are_woken(log: MasterLog, tmp_path: Path) -> None:  # fmt: skip
    begin = FollowBegin(segment_bytes=SEGMENT, log_offset=0)
    with penstock.open_follower(tmp_path, environ={}, begin=begin, **SETTINGS) as store:
        store.accept(identity(), log.ranges)
        feed(store, log, log.batches[0][1] - 5)

        child = os.fork()
        if child == 0:
            try:
                feed(store, log, log.end)
            except penstock.ForkedStoreError:
                store.close()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with penstock.open(tmp_path, read_only=True, environ={}) as found:
            seen = list[bytes]()
            for message in found.scan("t", queue=1, follow=True):
                seen.append(message.body)
                if len(seen) == 2:
                    # The reader waits for what comes from here on.
                    feed(store, log, log.end, 1000)
                if len(seen) == len(log.queues["t", 1]):
                    break
            assert seen == log.queues["t", 1]
    assert read_replica(Files(), tmp_path) == identity()
    with penstock.open(tmp_path, read_only=True, environ={}) as found:
        assert contents(found) == log.queues


def test_a_close_within_a_batch_keeps_its_part_and_the_next_opening_goes_on_there(log: MasterLog) -> None:  # fmt: skip
    """Plant: a part of a batch is cut off by recovery."""
    disk = SimulatedDisk()
    for number, (first, last) in enumerate(log.batches[:2]):
        store = accepted(disk, log, at=None if number else 0)
        feed(store, log, last - 1, 300)
        end = store.end_offset
        assert first < end < last
        for _ in range(2):
            store.close()
        with pytest.raises(penstock.StoreClosedError):
            store.feed(end, b"")
        with reader(disk) as found:
            assert found.stats()["log_end_offset"] == first
        with follower(disk) as again:
            found_again = state_of(again), again.end_offset, again.shown_offset
            assert found_again == ("abnormal", end, first)


@pytest.mark.parametrize("at", [0, SEGMENT])
def test_a_crash_while_a_copy_begins_leaves_nothing_or_a_follower(log: MasterLog, at: int) -> None:
    """Plant: the role is written after the log. Crashes of a copy that has begun are of the stories, see `pair`."""
    disk, copies, found = SimulatedDisk(), list[FollowedStore](), Counter[bool]()
    images = images_of(disk, lambda: copies.append(accepted(disk, log, at=at)))
    copies[0].close()
    for left in crashes(images, f"begin at {at}", of_so_many=5):
        is_follower = read_replica(left, ROOT) is not None
        found[is_follower] += 1
        if is_follower:
            with pytest.raises(penstock.FollowerError):
                master(left)
        else:
            # Else it could be opened as a master.
            assert not left.exists(ROOT / "commitlog")
        with accepted(left, log, at=at) as store:
            feed(store, log, log.end)
        assert raw_log(left)[: log.end - at] == log.raw[at:]
        assert findings(reader(left)) == []
    assert found[True] > found[False] > 0
