from pathlib import Path

import pytest
from tests.ha_peers import FakeSlave, MemoryLog, WireTalk, eventually, running_master

from penstock_replicate.master import listener
from penstock_replicate.wire.plain import encode_report


def test_more_connections_than_are_allowed_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", 2)
    log = MemoryLog(tmp_path)
    end = log.put()
    with running_master(log) as master, FakeSlave(master) as first, FakeSlave(master) as second:
        first.take_until(end)
        second.take_until(end)
        with WireTalk(master) as third:
            assert third.is_closed()
        assert master.stats()["connections"] == 2


def test_a_first_report_in_pieces_is_put_together(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 3)
    with running_master(log) as master, WireTalk(master) as slave:
        report = encode_report(log.starts[1])
        slave.send(report[:3])
        eventually(lambda: master.stats()["accepted"] == 1)
        slave.send(report[3:] + report)
        assert slave.receive()[:8] == report


def test_a_bug_while_serving_ends_that_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog(tmp_path)
    end = log.put()
    with running_master(log) as master, FakeSlave(master) as slave:
        slave.take_until(end)

        def fail(_offset: int, _size: int) -> bytes:
            raise ZeroDivisionError

        monkeypatch.setattr(log, "read", fail)
        with FakeSlave(master) as other:
            assert other.is_closed()
        monkeypatch.undo()
        slave.take_until(log.put())
        eventually(lambda: any("a bug" in str(state.last_error) for state in master.copies()))
        assert "ZeroDivisionError" in caplog.text
