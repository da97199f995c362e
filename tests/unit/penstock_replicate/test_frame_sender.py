import zlib
from hashlib import sha256
from pathlib import Path

import pytest
from tests.ha_peers import EMPTY, SEGMENT_BYTES, FakeFollower, MemoryLog, eventually, running_master

from penstock_replicate.master import frame_sender
from penstock_replicate.wire import frames
from penstock_replicate.wire.frames import (
    Ack,
    CoverageNote,
    Data,
    DigestAnswer,
    DigestQuestion,
    Follow,
    Heartbeat,
    RangeDigest,
    Refused,
    Removed,
    Side,
    encode,
)


def digest_of(log: MemoryLog, start: int, stop: int) -> RangeDigest:
    return RangeDigest(start, stop, sha256(log.data[start:stop]).hexdigest())


def test_an_empty_follower_gets_the_log_from_its_first_byte(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path, SEGMENT_BYTES)
    log.put(1000, 300)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.ask(EMPTY, history=None, epochs=())
        follower.take_until(log.visible_offset)
        follower.take_until(log.put(10_000, 20))
        assert (follower.begin, follower.data) == (SEGMENT_BYTES, log.data)
        assert isinstance(follower.frames[1], Heartbeat)
        assert isinstance(follower.frames[0], CoverageNote)


def test_large_data_is_sent_from_the_file_and_small_data_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_sender, "_SENDFILE_BYTES_MIN", 2000)
    log = MemoryLog(tmp_path)
    log.put(1000, 500)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.ask(EMPTY)
        follower.take_until(log.visible_offset)
        assert list(tmp_path.glob("lent-*"))
        follower.take_until(log.put(50))
        assert follower.data == log.data


def test_a_follower_goes_on_at_its_end_and_says_how_far_it_is(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 10)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.ask(Follow(end_offset=3000, is_empty=False, digests=(digest_of(log, 1000, 3000),)))
        follower.take_until(end)
        assert follower.data == log.data[3000:]
        follower.send(encode(Ack(end, 4000)))
        eventually(lambda: master.copies()[0].flushed_offset == 4000)
        state = master.copies()[0]
        assert (state.kind, state.received_offset, state.lag_bytes) == ("penstock", end, 0)
        assert state.in_sync


@pytest.mark.parametrize("ends", [(5001, 0), (2000, 0)])
def test_an_acknowledgement_that_cannot_be_is_refused(
    tmp_path: Path, ends: tuple[int, int]
) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 5)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.ask(Follow(end_offset=1000, is_empty=False))
        follower.take_until(end)
        follower.send(encode(Ack(3000, 0)) + encode(Ack(*ends)))
        assert follower.is_closed()


def test_a_removed_topic_comes_exactly_where_it_was_removed(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 5)
    log.removed = [("b", 5000), ("a", 2000), ("old", 500)]
    log.put(1000, 5)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.ask(Follow(end_offset=1000, is_empty=False))
        follower.take_until(log.visible_offset)
        log.removed.append(("c", log.visible_offset))
        follower.take_until(log.put(1000, 2))
        position, found = 1000, []
        for frame in follower.frames:
            if isinstance(frame, Data):
                position += len(frame.data)
            elif isinstance(frame, Removed):
                assert frame.before == position
                found.append(frame.topic)
        assert found == ["a", "b", "c"]


def test_files_beside_the_log_come_after_the_log_they_speak_of(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 5)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
    with running_master(log) as master:
        with FakeFollower(master) as follower:
            follower.ask(EMPTY)
            side = follower.find(Side)
            assert (side.name, side.data) == ("config/consumerOffset.json", b'{"offsetTable":{}}')
            assert follower.end == end
        with FakeFollower(master) as uninterested:
            uninterested.ask(Follow(end_offset=0, is_empty=True, wants_side=False))
            uninterested.take_until(end)
            uninterested.find(Heartbeat)
            assert not [frame for frame in uninterested.frames if isinstance(frame, Side)]


def test_a_refused_follower_may_ask_where_the_logs_part(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 10)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.ask(
            Follow(end_offset=3000, is_empty=False, digests=(RangeDigest(0, 3000, "00" * 32),))
        )
        refused = follower.find(Refused)
        assert (refused.code, refused.facts) == ("differs", {"start": 0, "stop": 3000})
        follower.send(encode(DigestQuestion(((0, 100), (9000, 20_000)))))
        assert follower.find(DigestAnswer).digests == (
            digest_of(log, 0, 100),
            RangeDigest(9000, 20_000, None),
        )
        assert str(master.copies()[0].last_error) == refused.text
        assert not follower.data


def test_questions_are_answered_while_the_log_is_sent(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 10)
    with running_master(log) as master, FakeFollower(master) as follower:
        follower.send(encode(follower.mine) + encode(DigestQuestion(((0, 9),))))
        assert follower.find(DigestAnswer).digests == (digest_of(log, 0, 9),)
        follower.send(encode(EMPTY))
        follower.take_until(log.visible_offset)
        follower.frames.clear()
        follower.send(encode(DigestQuestion(((5, 9),))))
        assert follower.find(DigestAnswer).digests == (digest_of(log, 5, 9),)
        follower.send(encode(DigestQuestion(((0, 9),))) * 50)
        assert follower.is_closed()


def test_retention_that_overtakes_a_follower_is_told(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    # At this rate it takes a quarter of a minute: the follower is overtaken on the slowest machine.
    log.put(1000, 1600)
    with (
        running_master(log, mib_per_s=0.1, silence_ms=60_000) as master,
        FakeFollower(master) as follower,
    ):
        follower.ask(EMPTY)
        follower.find(Data)
        log.min_offset = log.visible_offset // SEGMENT_BYTES * SEGMENT_BYTES
        assert follower.find(Refused).code == "removed"
        assert follower.is_closed()


def test_data_is_compressed_if_that_is_configured_and_the_follower_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped: list[bytes] = []
    compress = zlib.compress

    def noted(data: bytes, level: int) -> bytes:
        zipped.append(data)
        return compress(data, level)

    monkeypatch.setattr(zlib, "compress", noted)
    log = MemoryLog(tmp_path)
    log.put(1000, 200)
    with running_master(log, compress="zlib") as master:
        with FakeFollower(master) as follower:
            follower.ask(Follow(end_offset=0, is_empty=True, compress=False))
            follower.take_until(log.visible_offset)
            assert not zipped
        with FakeFollower(master) as follower:
            follower.ask(EMPTY)
            follower.take_until(log.visible_offset)
            assert follower.data == log.data
            assert zipped
            assert master.stats()["sent_bytes"] < 1.6 * len(log.data)


def test_the_limit_of_bytes_a_second_is_kept(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 100)
    with running_master(log, mib_per_s=0.5) as master, FakeFollower(master) as follower:
        began = frames.Heartbeat(0, master.context.clock.monotonic_ms())
        follower.ask(EMPTY)
        follower.take_until(log.visible_offset)
        # The first piece goes at once: 65,536 bytes, and a burst of a quarter of a second.
        took = master.context.clock.monotonic_ms() - began.time_ms
        assert took >= 0
        assert follower.data == log.data
