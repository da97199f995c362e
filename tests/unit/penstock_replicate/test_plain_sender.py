from pathlib import Path

import pytest
from tests.ha_peers import SEGMENT_BYTES, FakeSlave, MemoryLog, WireTalk, eventually, running_master

from penstock_replicate.master import plain_sender
from penstock_replicate.wire.plain import encode_report


def test_an_empty_slave_gets_the_last_file_and_what_follows(tmp_path: Path) -> None:
    """As a RocketMQ master: the history in older files is not sent to an empty slave."""
    log = MemoryLog(tmp_path)
    log.put(1000, 200)
    with running_master(log) as master, FakeSlave(master) as slave:
        slave.take_until(log.visible_offset)
        assert slave.begin == log.visible_offset // SEGMENT_BYTES * SEGMENT_BYTES
        slave.take_until(log.put(300, 5))
        assert slave.data == log.data[slave.begin :]


def test_a_slave_goes_on_at_its_own_end_through_rolls(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 200)
    start = log.starts[3]
    with running_master(log) as master, FakeSlave(master, start) as slave:
        slave.take_until(log.put(70, 3000))
        assert slave.data == log.data[start:]
        eventually(lambda: master.copies()[0].in_sync)
        assert master.copies()[0].kind == "rocketmq"
        assert master.copies()[0].flushed_offset is None


def test_every_chunk_ends_with_a_record(tmp_path: Path) -> None:
    """A slave appends chunks as a whole; so it never stops inside a record, and its next first report can be checked."""
    log = MemoryLog(tmp_path)
    for size in (100, 900, 5000, 40, 1000, 91, 60_000, 2048, 100):
        log.put(size, 7)
    with running_master(log, chunk_bytes=1024) as master, FakeSlave(master, log.starts[1]) as slave:
        slave.take_until(log.visible_offset)
        starts = {*log.starts, log.visible_offset}
        assert slave.data == log.data[log.starts[1] :]
        assert {chunk.log_offset for chunk in slave.chunks} <= starts
        assert len(slave.chunks) > 40


def test_a_record_that_no_slave_has_memory_for_comes_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_sender, "ROCKETMQ_CHUNK_BYTES_MAX", 4000)
    log = MemoryLog(tmp_path)
    log.put(100, 3)
    log.put(30_000, 1)
    log.put(100, 3)
    with running_master(log, chunk_bytes=1024) as master:
        with FakeSlave(master, log.starts[1]) as slave:
            slave.take_until(log.visible_offset)
            assert slave.data == log.data[log.starts[1] :]
            assert max(len(chunk.data) for chunk in slave.chunks) <= 4000
        # Such a slave may be inside that record, and goes on there.
        with FakeSlave(master, log.starts[3] + 5000) as slave:
            slave.take_until(log.visible_offset)
            assert slave.data == log.data[slave.begin :]


def test_a_first_report_in_the_middle_of_a_record_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A RocketMQ master serves it from there, and what follows corrupts the log of a slave whose log is another one."""
    log = MemoryLog(tmp_path)
    log.put(1000, 10)
    with running_master(log) as master:
        for _ in range(3):
            with FakeSlave(master, 1500) as slave:
                assert slave.is_closed()
        eventually(lambda: len(master.copies()) == 3)
        assert "in the middle of a record" in str(master.copies()[0].last_error)
        assert master.stats()["refused"] == 3
        # It tries again every few seconds; that is not news.
        assert caplog.text.count("in the middle of a record") == 1


def test_a_first_report_beyond_the_end_is_refused(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 10)
    with running_master(log) as master:
        with FakeSlave(master, end + 1) as slave:
            assert slave.is_closed()
        eventually(lambda: bool(master.copies()))
        assert f"beyond the end of this log, {end}" in str(master.copies()[0].last_error)


def test_a_position_that_retention_removed_is_refused(tmp_path: Path) -> None:
    """A RocketMQ master sends heartbeats for ever."""
    log = MemoryLog(tmp_path, SEGMENT_BYTES)
    log.put(1000, 10)
    with running_master(log) as master:
        with FakeSlave(master, 1000) as slave:
            assert slave.is_closed()
        eventually(lambda: bool(master.copies()))
        assert f"the log here begins at {SEGMENT_BYTES}" in str(master.copies()[0].last_error)


def test_a_later_report_of_what_was_not_sent_is_refused(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 10)
    with running_master(log) as master, FakeSlave(master) as slave:
        slave.take_until(end)
        slave.send(encode_report(end + 1))
        assert slave.is_closed()
        eventually(lambda: master.copies()[0].last_error is not None)


def test_a_later_report_of_less_is_refused(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 10)
    with running_master(log) as master, FakeSlave(master) as slave:
        slave.take_until(end)
        slave.send(encode_report(1000))
        assert slave.is_closed()
        eventually(lambda: "lost a part" in str(master.copies()[0].last_error))


def test_a_slave_that_waits_gets_heartbeats_with_the_next_offset(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 10)
    with running_master(log, heartbeat_ms=20) as master, FakeSlave(master) as slave:
        while len(slave.chunks) < 4:
            slave.take()
        assert [(chunk.log_offset, bytes(chunk.data)) for chunk in slave.chunks[1:]] == [
            (end, b"")
        ] * 3


def test_a_silent_slave_is_closed(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put()
    with running_master(log, silence_ms=100) as master, WireTalk(master) as silent:
        assert silent.is_closed()
        with FakeSlave(master, acks=False) as slave:
            assert slave.is_closed()
        eventually(lambda: "was silent" in str(master.copies()[0].last_error))


def test_a_negative_first_report_that_nobody_sends_is_refused(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with running_master(log) as master, WireTalk(master) as other:
        other.send(encode_report(-7))
        assert other.is_closed()


def test_an_empty_slave_may_say_so_again_while_its_first_bytes_are_under_way(
    tmp_path: Path,
) -> None:
    """It reports every five seconds, also while it has not taken what was sent; where it begins is not 0."""
    log = MemoryLog(tmp_path)
    log.put(1000, 100)
    with running_master(log) as master, FakeSlave(master, acks=False) as slave:
        slave.take_until(log.visible_offset)
        assert slave.begin == SEGMENT_BYTES
        slave.send(encode_report(0) + encode_report(0))
        slave.send(encode_report(slave.end))
        eventually(lambda: master.copies()[0].in_sync)
