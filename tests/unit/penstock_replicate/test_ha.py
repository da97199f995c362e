import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from tests.ha_peers import (
    EMPTY,
    FakeFollower,
    FakeSlave,
    MemoryLog,
    WireTalk,
    context_of,
    eventually,
    running_master,
)

from penstock.errors import ConfigError
from penstock_replicate.master.ha import HaReplicator
from penstock_replicate.master.ha_options import HaOptions


def test_one_master_serves_both_kinds_at_once(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    log.put(1000, 100)
    with (
        running_master(log) as master,
        FakeSlave(master) as slave,
        FakeFollower(master) as follower,
    ):
        follower.ask(EMPTY)
        end = log.put(1000, 100)
        follower.take_until(end)
        slave.take_until(end)
        assert follower.data == log.data
        assert slave.data == log.data[slave.begin :]
        assert {state.kind for state in master.copies()} == {"rocketmq", "penstock"}
        assert "2 copies" in master.summary()[0].text


def test_closing_sends_what_copies_lack_and_ends_the_thread(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with running_master(log, mib_per_s=1) as master, FakeSlave(master) as slave:
        end = log.put(1000, 300)
        closing = threading.Thread(target=master.close)
        closing.start()
        slave.take_until(end)
        closing.join(10)
        assert slave.is_closed()
    assert not [one for one in threading.enumerate() if one.name == "penstock-ha"]


def test_an_address_that_is_taken_is_an_error(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    with running_master(log) as master:
        assert master.address is not None
        second = HaReplicator(HaOptions(listen=master.address), context_of(tmp_path), log)
        with pytest.raises(ConfigError, match="cannot listen"):
            second.start()
        second.close()
        second.close()


def test_history_and_epochs_stay_over_a_restart(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    found = []
    for _ in range(2):
        with running_master(log) as master, FakeFollower(master) as follower:
            found.append((follower.master.history, follower.master.epochs))
    assert found[0] == found[1]


def test_with_tls_only_tls_is_served(tmp_path: Path) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        check=False, capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl makes no certificate here")
    log = MemoryLog(tmp_path)
    log.put(1000, 300)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with running_master(log, tls_cert=cert, tls_key=key) as master:
        with FakeFollower(master, ssl.create_default_context(cafile=cert)) as follower:
            follower.ask(EMPTY)
            follower.take_until(log.visible_offset)
            assert follower.data == log.data
        with WireTalk(master) as plain:
            plain.send(bytes(8))
            assert plain.is_closed()
        eventually(lambda: master.stats()["connections"] == 0)
