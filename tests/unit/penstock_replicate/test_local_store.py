"""This side's store: its role while it follows, and what it is when a master refuses."""

from pathlib import Path

import pytest
from tests.scripted_masters import SEGMENT_BYTES, filled, settings

import penstock
from penstock.durability.replica_file import Replica, ReplicaFile
from penstock.errors import ReplicationError
from penstock.files import Files
from penstock.runtime.clock import Clock
from penstock_replicate.following.local_store import LocalStore, NoLog
from penstock_replicate.following.options import Address, FollowOptions
from penstock_replicate.following.standing import Standing
from penstock_replicate.wire.frames import Hello

HELLO = Hello(
    history="ab" * 16, epochs=((1, 0), (2, 500)), segment_bytes=SEGMENT_BYTES, min_offset=0, end_offset=5 * SEGMENT_BYTES + 7,
    store="m", nonce="00" * 32, needs_proof=False,
)  # fmt: skip
MASTER = Address("a", 1)


def local(path: Path, **given: object) -> LocalStore:
    options = FollowOptions(master=MASTER, settings=settings(), **given)  # type: ignore[arg-type] # of any option
    return LocalStore(path, options, Files(), Clock(), Standing(lambda: 5, 1, "a:1"))


def role(path: Path) -> Replica | None:
    return ReplicaFile(Files(), path).read()


def test_a_new_store_has_the_history_and_the_sizes_of_its_master(tmp_path: Path) -> None:
    store = local(tmp_path / "c")
    store.open_existing()
    assert store.landing is None
    assert not store.is_there
    assert store.new_side(HELLO).is_empty
    landing = store.open_new(HELLO)
    assert landing.store.segment_bytes == SEGMENT_BYTES
    assert store.own_side(landing, HELLO).history == HELLO.history
    store.accepted(HELLO)
    store.close()
    found = role(tmp_path / "c")
    assert found is not None
    assert (found.history, found.role, found.master, found.master_kind) == (HELLO.history, "follower", "a:1", "penstock")  # fmt: skip
    assert [(each.epoch, each.start_offset) for each in found.epochs] == [(1, 0), (2, 500)]


def test_an_empty_log_may_begin_with_the_last_file(tmp_path: Path) -> None:
    for is_last, start in ((False, 0), (True, 5 * SEGMENT_BYTES)):
        store = local(tmp_path / f"c{start}", from_last_file=is_last)
        landing = store.open_new(HELLO)
        asked = store.request(landing, store.own_side(landing, HELLO), HELLO)
        assert (asked.end_offset, asked.is_empty) == (start, not is_last)
        store.close()


def test_a_master_that_is_refused_is_a_master_again(tmp_path: Path) -> None:
    filled(tmp_path / "c")
    before = Replica(history="cd" * 16, role="master")
    ReplicaFile(Files(), tmp_path / "c").write(before)
    store = local(tmp_path / "c")
    store.open_existing()
    during = role(tmp_path / "c")
    assert during is not None
    assert during.role == "follower"
    assert store.landing is not None
    assert store.own_side(store.landing, HELLO).history == "cd" * 16
    error = ReplicationError(tmp_path / "c", "a:1", "it is another one", "Check", needs_copy=True)
    with pytest.raises(ReplicationError) as caught:
        store.mend(error)
    assert caught.value is error
    assert role(tmp_path / "c") == before
    with penstock.open(tmp_path / "c") as opened:
        opened.put("orders", b"as before")


def test_a_store_is_set_aside_once(tmp_path: Path) -> None:
    filled(tmp_path / "c")
    store = local(tmp_path / "c", full_copy=True)
    store.open_existing()
    error = ReplicationError(tmp_path / "c", "a:1", "it is another one", "Check", needs_copy=True)
    store.mend(error)
    assert not (tmp_path / "c").exists()
    (aside,) = tmp_path.glob("c.set-aside*")
    with penstock.open(aside, read_only=True) as opened:
        assert len(list(opened.scan("orders"))) == 20
    store.open_new(HELLO)
    with pytest.raises(ReplicationError) as caught:
        store.mend(error)
    assert caught.value is error
    store.close()


def test_a_log_that_is_not_made_is_empty() -> None:
    log = NoLog(100)
    assert (log.min_offset, log.end_offset, log.read(0, 5), log.digest(0, 0)) == (0, 0, b"", b"")
