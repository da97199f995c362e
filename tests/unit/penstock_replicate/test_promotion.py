"""Promotion: what it says before, and that it happens once, with and without a process that follows."""

import threading
import time
from pathlib import Path

import pytest
from tests.scripted_masters import PlainMaster, filled, log_of, settings

import penstock
from penstock.errors import ConfigError, NotAStoreError, StoreLockedError
from penstock.files import Files
from penstock_replicate.following.follow import follow
from penstock_replicate.roles.promotion import look_ahead, promote_closed, promote_followed


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def copied(tmp_path: Path, *, cut_short: int = 0) -> tuple[Path, int]:
    """Return a closed follower of a script, which has all or all but the last bytes."""
    end = filled(tmp_path / "master")
    copy = tmp_path / "copy"
    with (
        PlainMaster(log_of(tmp_path / "master")[: end - cut_short]) as master,
        follow(copy, master.address, protocol="rocketmq", **settings()) as follower,
    ):
        assert follower.wait_caught_up(5) or cut_short
    return copy, end


def test_what_may_be_lost_is_said_before(tmp_path: Path) -> None:
    copy, end = copied(tmp_path, cut_short=10)
    ahead = look_ahead(Files(), copy, now_ms())
    assert ahead.status is not None
    assert ahead.status.master_offset == end - 10
    assert ahead.missing_bytes == end - 10 - ahead.status.end_offset > 0
    assert ahead.contact_age_ms is not None
    assert ahead.contact_age_ms < 60_000
    assert not ahead.is_followed
    first, second = ahead.lines()
    assert f"{ahead.missing_bytes} bytes" in first
    assert "not here and will be lost" in first
    assert "is not known" in second
    (copy / "penstock" / "replica-status").unlink()
    (only,) = look_ahead(Files(), copy, now_ms()).lines()
    assert "is not known" in only


def test_a_closed_follower_becomes_a_master_that_takes_messages(tmp_path: Path) -> None:
    copy, end = copied(tmp_path)
    done = promote_closed(copy)
    assert (done.epoch, done.start_offset) == (1, end)
    with penstock.open(copy) as store:
        assert store.put("orders", b"next").log_offset == end
        assert len(list(store.scan("orders"))) == 21
    with pytest.raises(ConfigError, match="is a master"):
        look_ahead(Files(), copy, now_ms())


def test_what_is_no_follower_is_not_promoted(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        look_ahead(Files(), tmp_path, now_ms())
    filled(tmp_path / "plain", 1)
    with pytest.raises(ConfigError, match="was never a copy"):
        look_ahead(Files(), tmp_path / "plain", now_ms())


def test_a_process_that_follows_promotes_and_ends(tmp_path: Path) -> None:
    end = filled(tmp_path / "master")
    copy = tmp_path / "copy"
    with PlainMaster(log_of(tmp_path / "master")[:end]) as master:
        follower = follow(copy, master.address, protocol="rocketmq", **settings())
        assert follower.wait_caught_up(5)
        assert look_ahead(Files(), copy, now_ms()).is_followed
        with pytest.raises(StoreLockedError):
            promote_closed(copy)
        done = promote_followed(Files(), copy, 10, time_ms=now_ms)
        assert (done.epoch, done.start_offset) == (1, end)
        assert follower.wait_over(5)
        assert follower.status().state == "promoted"
        follower.close()
    with penstock.open(copy) as store:
        assert store.put("orders", b"next").log_offset == end


def test_a_follower_promotes_itself(tmp_path: Path) -> None:
    end = filled(tmp_path / "master")
    with PlainMaster(log_of(tmp_path / "master")[:end]) as master:
        follower = follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings())
        assert follower.wait_caught_up(5)
        assert follower.promote().epochs[-1].start_offset == end
        follower.close()


def test_a_process_that_does_not_answer_is_named(tmp_path: Path) -> None:
    copy, _ = copied(tmp_path)
    lock = Files().lock(copy / "lock")
    assert lock is not None
    with pytest.raises(StoreLockedError, match="does not answer"):
        promote_followed(Files(), copy, 0.2, time_ms=now_ms)
    assert not (copy / "penstock" / "promote-request").exists()
    # One that dies instead of answering leaves a follower that is promoted here.
    threading.Timer(0.3, lock.release).start()
    assert promote_followed(Files(), copy, 10, time_ms=now_ms).epoch == 1
