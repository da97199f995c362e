"""A follower of a Penstock master: copies, reconnects, stops, is promoted, and meets logs that differ."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scripted_masters import (
    SEGMENT_BYTES,
    bodies,
    filled,
    log_of,
    put_some,
    serving,
    settings,
)

import penstock
from penstock.durability.removed_topics import RemovedTopicsFile
from penstock.durability.replica_file import ReplicaFile
from penstock.errors import (
    ConfigError,
    DivergedError,
    FollowerError,
    ReplicationError,
    StoreLockedError,
)
from penstock.files import Files
from penstock_replicate.following.follow import follow
from penstock_replicate.following.follower import LogFollower
from penstock_replicate.roles.status_file import StatusFile


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_history_is_copied_from_its_first_byte_into_segments_of_the_same_size(
    tmp_path: Path,
) -> None:
    end = filled(tmp_path / "m", 1500)
    assert end > 3 * SEGMENT_BYTES
    with serving(tmp_path / "m") as (_, address), follow(tmp_path / "c", address) as follower:
        assert follower.wait_caught_up(10)
        status = follower.status()
        assert (status.kind, status.state, status.end_offset) == ("penstock", "following", end)
        assert status.received_bytes == end
    assert follower.status().flushed_offset == end
    assert log_of(tmp_path / "c")[:end] == log_of(tmp_path / "m")[:end]
    assert bodies(tmp_path / "c") == list(range(1500))
    ours, theirs = (ReplicaFile(Files(), tmp_path / name).read() for name in "cm")
    assert ours is not None
    assert theirs is not None
    assert (ours.role, ours.history, ours.epochs) == ("follower", theirs.history, theirs.epochs)


def test_messages_are_read_beside_a_follower_while_it_follows(tmp_path: Path) -> None:
    with serving(tmp_path / "m") as (store, address):
        put_some(store, 3)
        with follow(tmp_path / "c", address) as follower:
            end = put_some(store, 5, first=3)
            assert follower.wait_caught_up(10, log_offset=end)
            with penstock.open(tmp_path / "c", read_only=True) as reader:
                found = reader.scan("orders", follow=True)
                assert [int(next(found).body[:6]) for _ in range(8)] == list(range(8))
            with pytest.raises(FollowerError):
                penstock.open(tmp_path / "c")
            with pytest.raises(StoreLockedError):
                follow(tmp_path / "c", address)


def test_a_follower_goes_on_after_both_sides_were_closed(tmp_path: Path) -> None:
    count = 0
    for round_ in range(3):
        with serving(tmp_path / "m") as (store, address):
            end = put_some(store, 400, first=count)
            count += 400
            with follow(tmp_path / "c", address) as follower:
                assert follower.wait_caught_up(10, log_offset=end)
                expected = end if round_ == 0 else follower.status().received_bytes
                assert follower.status().received_bytes == expected <= end
    assert bodies(tmp_path / "c") == list(range(count))


def test_a_follower_waits_for_its_master_and_connects_again(tmp_path: Path) -> None:
    with serving(tmp_path / "m") as (store, address):
        put_some(store, 10)
    follower = follow(tmp_path / "c", address)
    assert not follower.wait_caught_up(0.5)
    assert follower.status().state == "connecting"
    assert "cannot be reached" in (follower.status().last_error or "")
    for round_ in range(2):
        with serving(tmp_path / "m", listen=address) as (store, _):
            end = put_some(store, 10, first=10 * (round_ + 1))
            assert follower.wait_caught_up(20, log_offset=end)
    follower.close()
    assert bodies(tmp_path / "c") == list(range(30))


def test_puts_that_wait_are_on_disk_there(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "m", in_sync_replicas=2) as (store, address),
        follow(tmp_path / "c", address) as follower,
    ):
        assert follower.wait_caught_up(10)
        put_some(store, 1)
        for number in range(1, 20):
            end = put_some(store, 1, first=number)
            assert follower.status().end_offset >= end


def test_a_secret_must_be_known_on_both_sides(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a secret of sixteen bytes or more")
    other.write_text("another one of sixteen bytes, too")
    with serving(tmp_path / "m", secret_file=str(one)) as (store, address):
        end = put_some(store, 5)
        with follow(tmp_path / "c", address, secret_file=str(one)) as follower:
            assert follower.wait_caught_up(10, log_offset=end)
        for name, given in (("d", ""), ("e", str(other))):
            follower = follow(tmp_path / name, address, secret_file=given)
            assert follower.wait_over(10)
            with pytest.raises(ReplicationError, match="secret"):
                follower.close()
            assert not (tmp_path / name).exists()
    with serving(tmp_path / "open") as (_, address):
        follower = follow(tmp_path / "f", address, secret_file=str(one))
        assert follower.wait_over(10)
        with pytest.raises(ReplicationError, match="this master has none"):
            follower.close()
    with pytest.raises(ConfigError, match="cannot be read"):
        follow(tmp_path / "g", address, secret_file=str(tmp_path / "none"))


def test_the_last_file_alone_is_copied_on_request(tmp_path: Path) -> None:
    end = filled(tmp_path / "m", 1500)
    start = end - end % SEGMENT_BYTES
    for _ in range(2):
        with (
            serving(tmp_path / "m") as (_, address),
            follow(tmp_path / "c", address, from_last_file=True) as follower,
        ):
            assert follower.wait_caught_up(10)
            assert follower.status().end_offset == end
    assert [f.name for f in (tmp_path / "c" / "commitlog").iterdir()] == [f"{start:020d}"]


def test_segments_of_another_size_are_refused_with_both_numbers(tmp_path: Path) -> None:
    filled(tmp_path / "m", 10)
    with penstock.open(tmp_path / "c", **settings(2 * SEGMENT_BYTES)) as store:
        put_some(store, 10)
    with serving(tmp_path / "m") as (_, address):
        follower = follow(tmp_path / "c", address)
        assert follower.wait_over(10)
        with pytest.raises(ReplicationError) as caught:
            follower.close()
    assert str(SEGMENT_BYTES) in str(caught.value)
    assert str(2 * SEGMENT_BYTES) in str(caught.value)


def promoted_pair(tmp_path: Path) -> tuple[Path, Path, int, int]:
    """Return an old master, which wrote on, and a new one, promoted earlier; with where they part, and the old one's end."""
    old, new = tmp_path / "old", tmp_path / "new"
    with serving(old) as (store, address):
        put_some(store, 100)
        follower = follow(new, address)
        assert follower.wait_caught_up(10)
        parts_at = follower.promote().epochs[-1].start_offset
        end = put_some(store, 50, first=100)
    with penstock.open(new) as store:
        put_some(store, 70, first=500)
    return old, new, parts_at, end


def refusal(follower: LogFollower) -> ReplicationError:
    assert follower.wait_over(20)
    with pytest.raises(ReplicationError) as caught:
        follower.close()
    return caught.value


def test_the_older_of_two_masters_is_told_where_they_part_and_follows_after_a_cut(
    tmp_path: Path,
) -> None:
    old, new, parts_at, end = promoted_pair(tmp_path)
    with serving(new) as (_, address):
        error = refusal(follow(old, address))
        assert isinstance(error, DivergedError)
        assert (error.parts_at, error.extra_bytes, error.extra_records) == (parts_at, end - parts_at, 50)  # fmt: skip
        # It is a master as before.
        with penstock.open(old) as store:
            assert store.max_offset("orders", 0) == 150
        assert error.parts_at == parts_at
        with follow(old, address, cut=True) as follower:
            assert follower.wait_caught_up(10)
            assert follower.status().epoch == 2
    assert bodies(old) == [*range(100), *range(500, 570)] == bodies(new)
    saved = list((old / "penstock" / "saved").rglob("*"))
    assert saved


def test_the_newer_of_two_masters_refuses_to_follow_the_older_one(tmp_path: Path) -> None:
    old, new, parts_at, _ = promoted_pair(tmp_path)
    with serving(old) as (store, address):
        error = refusal(follow(new, address, cut=True))
        assert "is the older one" in str(error)
        assert error.facts["parts_at"] == parts_at
        copies = store.stats()["copies"]
        print(copies)
    assert len(bodies(new)) == 170


def test_a_full_copy_keeps_the_old_folder(tmp_path: Path) -> None:
    old, new, _, _ = promoted_pair(tmp_path)
    with serving(new) as (_, address), follow(old, address, full_copy=True) as follower:
        assert follower.wait_caught_up(10)
    assert bodies(old) == [*range(100), *range(500, 570)]
    (aside,) = tmp_path.glob("old.set-aside*")
    assert bodies(aside) == list(range(150))


def test_a_store_of_another_history_is_refused(tmp_path: Path) -> None:
    for name in ("m", "other"):
        with serving(tmp_path / name) as (store, _):
            put_some(store, 10)
    with serving(tmp_path / "m") as (_, address):
        error = refusal(follow(tmp_path / "other", address))
        assert "another one" in str(error)
        with follow(tmp_path / "other", address, full_copy=True) as follower:
            assert follower.wait_caught_up(10)


def test_a_copied_folder_follows_without_a_copy_over_the_wire(tmp_path: Path) -> None:
    filled(tmp_path / "m", 500)
    shutil.copytree(tmp_path / "m", tmp_path / "c")
    with serving(tmp_path / "m") as (store, address):
        end = put_some(store, 10, first=500)
        with follow(tmp_path / "c", address) as follower:
            assert follower.wait_caught_up(10, log_offset=end)
            assert follower.status().received_bytes < 5000
    assert bodies(tmp_path / "c") == list(range(510))


def test_bytes_that_differ_in_one_history_are_found_and_cut(tmp_path: Path) -> None:
    """Both stores were promoted in one epoch number at one log offset: only their bytes tell them apart."""
    with serving(tmp_path / "a") as (store, address):
        parts_at = put_some(store, 300)
        with follow(tmp_path / "b", address) as follower:
            assert follower.wait_caught_up(10)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    for name in "bc":
        with serving(tmp_path / "a") as (_, address):
            follow(tmp_path / name, address).promote()
    with penstock.open(tmp_path / "b") as store:
        put_some(store, 200, first=1000)
    with serving(tmp_path / "c") as (store, address):
        put_some(store, 400, first=2000)
        error = refusal(follow(tmp_path / "b", address))
        assert isinstance(error, DivergedError)
        assert (error.parts_at, error.extra_records) == (parts_at, 200)
        with follow(tmp_path / "b", address, cut=True) as follower:
            assert follower.wait_caught_up(10)
    assert bodies(tmp_path / "b") == [*range(300), *range(2000, 2400)]


def test_a_position_that_retention_removed_is_an_error_and_a_full_copy_helps(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "m") as (store, address):
        put_some(store, 100)
        with follow(tmp_path / "c", address) as follower:
            assert follower.wait_caught_up(10)
        put_some(store, 1500, first=100)
    for file in sorted((tmp_path / "m" / "commitlog").iterdir())[:2]:
        file.unlink()
    with serving(tmp_path / "m") as (_, address):
        error = refusal(follow(tmp_path / "c", address))
        assert "retention has removed" in str(error)
        assert error.needs_copy
        with follow(tmp_path / "c", address, full_copy=True) as follower:
            assert follower.wait_caught_up(10)
    assert log_of(tmp_path / "c")[: 1 << 16] == log_of(tmp_path / "m")[: 1 << 16]


def test_removed_topics_and_offsets_reach_the_follower(tmp_path: Path) -> None:
    with serving(tmp_path / "m", side_interval_ms=50) as (store, address):
        for number in range(5):
            store.put("gone", b"%d" % number)
        put_some(store, 5)
        with follow(tmp_path / "c", address) as follower:
            assert follower.wait_caught_up(10)
            store.delete_topic("gone")
            store.commit_offset("billing", "orders", 0, offset=3)
            end = put_some(store, 5, first=5)
            assert follower.wait_caught_up(10, log_offset=end)
            # Written at once by the master, and within its interval here, after the log.
            offsets = tmp_path / "c" / "config" / "consumerOffset.json"
            eventually(lambda: offsets.exists() and "billing" in offsets.read_text())
        with penstock.open(tmp_path / "c", read_only=True) as reader:
            assert list(reader.topics()) == ["orders"]
    assert bodies(tmp_path / "c") == list(range(10))


def test_the_status_file_says_how_far_the_follower_is(tmp_path: Path) -> None:
    seen: list[str] = []
    with (
        serving(tmp_path / "m") as (store, address),
        follow(
            tmp_path / "c", address, on_status=lambda status: seen.append(status.state)
        ) as follower,
    ):
        end = put_some(store, 5)
        assert follower.wait_caught_up(10, log_offset=end)
    found = StatusFile(Files(), tmp_path / "c").read()
    assert found is not None
    assert (found.state, found.peer, found.end_offset, found.flushed_offset) == ("stopped", address, end, end)  # fmt: skip
    assert found.master_offset == end
    assert (
        json.loads((tmp_path / "c" / "penstock" / "replica-status").read_text())["lag_bytes"] == 0
    )
    assert seen[-1] == "stopped"


def test_the_summary_of_a_store_says_whom_it_follows(tmp_path: Path) -> None:
    filled(tmp_path / "m")

    def told() -> str:
        with penstock.open(tmp_path / "c", read_only=True) as store:
            return " ".join(line.text for line in store.summary() if line.key == "replication")

    with serving(tmp_path / "m") as (_, address):
        with follow(tmp_path / "c", address) as follower:
            assert follower.wait_caught_up(10)
            deadline = time.monotonic() + 10
            while f"follows {address} (penstock), following" not in told():
                assert time.monotonic() < deadline, told()
                time.sleep(0.1)
        assert told() == f"follower of {address}, epoch 1; no process lets it follow now"


def test_a_follower_that_is_behind_sees_every_life_of_a_topic(tmp_path: Path) -> None:
    """Only the last removal was known: a follower that was behind gave the first two lives the queue offsets of one."""
    with serving(tmp_path / "m") as (store, address):
        end = 0
        for life in range(4):
            for number in range(3 + life):
                store.put("again", b"%d" % number)
            end = put_some(store, 2, first=2 * life)
            if life < 3:
                store.delete_topic("again")
        with follow(tmp_path / "c", address) as follower:
            assert follower.wait_caught_up(10, log_offset=end)
        expected = [(m.queue, m.queue_offset, m.log_offset) for m in store.scan("again")]
        removed = RemovedTopicsFile(Files(), tmp_path / "m").read().topics
        assert len(expected) == 6
    assert RemovedTopicsFile(Files(), tmp_path / "c").read().topics == removed
    with penstock.open(tmp_path / "c", read_only=True) as copy:
        assert [(m.queue, m.queue_offset, m.log_offset) for m in copy.scan("again")] == expected
