"""A follower of a RocketMQ master: here a script that speaks its protocol."""

from pathlib import Path

import pytest
from tests.scripted_masters import SEGMENT_BYTES, PlainMaster, bodies, filled, log_of, settings

import penstock
from penstock.errors import FollowerError, ReplicationError
from penstock_replicate.following.follow import follow
from penstock_replicate.following.plain_session import QUIET_S

assert QUIET_S < 1


def served(tmp_path: Path, count: int = 20) -> tuple[bytes, int]:
    end = filled(tmp_path / "master", count)
    return log_of(tmp_path / "master")[:end], end


def test_a_log_is_copied_and_its_messages_are_found(tmp_path: Path) -> None:
    log, end = served(tmp_path)
    with (
        PlainMaster(log, chunk_bytes=777) as master,
        follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings()) as follower,
    ):
        assert follower.wait_caught_up(10)
        assert follower.status().end_offset == end
        assert (follower.status().kind, follower.status().state) == ("rocketmq", "following")
        with pytest.raises(FollowerError):
            penstock.open(tmp_path / "copy")
    assert master.reports[-1] == end
    assert master.reports == sorted(master.reports)
    assert log_of(tmp_path / "copy")[:end] == log
    assert bodies(tmp_path / "copy") == list(range(20))
    assert follower.status().state == "stopped"


def test_auto_finds_out_that_the_master_is_rocketmq(tmp_path: Path) -> None:
    log, end = served(tmp_path)
    with (
        PlainMaster(log) as master,
        follow(tmp_path / "copy", master.address, **settings()) as follower,
    ):
        assert follower.wait_caught_up(20)
        assert master.reports[0] == -1
        assert follower.status().kind == "rocketmq"
        assert follower.status().end_offset == end


def test_new_messages_are_followed_over_connections_that_end(tmp_path: Path) -> None:
    log, end = served(tmp_path)
    with (
        PlainMaster(log[:1000]) as master,
        follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings()) as follower,
    ):
        for size in (1500, 2000, end):
            master.log = log[:size]
            if size != end:
                assert follower.wait_caught_up(10, log_offset=size - 400)
            master.drop()
        assert follower.wait_caught_up(10, log_offset=end)
        assert master.connections >= 3
    assert log_of(tmp_path / "copy")[:end] == log


def test_changed_bytes_are_asked_for_again(tmp_path: Path) -> None:
    log, end = served(tmp_path)
    with PlainMaster(log, chunk_bytes=500) as master:
        count = 0

        def change(data: bytes) -> bytes:
            nonlocal count
            count += 1
            # Within the third chunk's data.
            return data[:100] + bytes([data[100] ^ 1]) + data[101:] if count == 3 else data

        master.change = change
        with follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings()) as follower:  # fmt: skip
            assert follower.wait_caught_up(10, log_offset=end)
            assert "not valid" in (follower.status().last_error or "")
    assert log_of(tmp_path / "copy")[:end] == log


def test_bytes_that_are_never_valid_end_the_following(tmp_path: Path) -> None:
    log, end = served(tmp_path)
    bad = bytearray(log)
    bad[end // 2] ^= 1
    with PlainMaster(bytes(bad)) as master:
        follower = follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings())
        assert follower.wait_over(20)
        with pytest.raises(ReplicationError, match="it was sent 5 times"):
            follower.close()
    assert follower.status().state == "failed"


def test_a_log_of_many_segments_begins_with_the_last_file(tmp_path: Path) -> None:
    log, end = served(tmp_path, 1000)
    start = end - end % SEGMENT_BYTES
    assert start > SEGMENT_BYTES
    with (
        PlainMaster(log) as master,
        follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings()) as follower,
    ):
        assert follower.wait_caught_up(10)
        assert follower.status().end_offset == end
    assert [f.name for f in (tmp_path / "copy" / "commitlog").iterdir()] == [f"{start:020d}"]


def test_a_file_that_begins_within_a_segment_is_refused_with_both_numbers(tmp_path: Path) -> None:
    log, end = served(tmp_path, 1000)
    start = end - end % SEGMENT_BYTES
    size = 4 * SEGMENT_BYTES
    with PlainMaster(log) as master:
        follower = follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings(size))  # fmt: skip
        assert follower.wait_over(10)
        with pytest.raises(ReplicationError) as caught:
            follower.wait_caught_up(1)
        assert str(start) in str(caught.value)
        assert str(size) in str(caught.value)
        with pytest.raises(ReplicationError):
            follower.close()


def test_a_silent_master_is_left(tmp_path: Path) -> None:
    log, _ = served(tmp_path)
    with PlainMaster(log) as master:
        master.is_mute = True
        with follow(
            tmp_path / "copy", master.address, protocol="rocketmq", silence_ms=300, **settings()
        ) as follower:
            assert not follower.wait_caught_up(1.5)
            assert master.connections > 1
            assert "silent" in (follower.status().last_error or "")
            master.is_mute = False
            assert follower.wait_caught_up(10)


@pytest.mark.parametrize("garbage", [b"\xff" * 12, b"\0" * 8 + b"\x7f\xff\xff\xff", b"\0" * 7 + b"\x05" + b"\0\0\0\0"])  # fmt: skip
def test_garbage_ends_the_connection_and_leaves_the_log(tmp_path: Path, garbage: bytes) -> None:
    log, end = served(tmp_path)
    with PlainMaster(log) as master:
        is_first = True

        def change(data: bytes) -> bytes:
            nonlocal is_first
            found, is_first = garbage if is_first else data, False
            return found

        master.change = change
        with follow(tmp_path / "copy", master.address, protocol="rocketmq", **settings()) as follower:  # fmt: skip
            assert follower.wait_caught_up(10, log_offset=end)
        assert master.connections == 2
