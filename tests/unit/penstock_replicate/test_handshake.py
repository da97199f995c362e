from pathlib import Path
from unittest.mock import Mock

import attrs
import pytest
from tests.ha_peers import EMPTY, FakeFollower, FakeSlave, MemoryLog, WireTalk, running_master

from penstock_replicate.master.handshake import Handshake
from penstock_replicate.wire.frames import WIRE_VERSION, Ack, Auth, Refused, encode
from penstock_replicate.wire.plain import encode_report
from penstock_replicate.wire.proof import is_proof, prove

SECRET = b"0123456789abcdef"


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return str(path)


def test_who_proves_the_secret_is_served_and_gets_a_proof(tmp_path: Path, secret_file: str) -> None:
    log = MemoryLog(tmp_path)
    end = log.put(1000, 5)
    with running_master(log, secret_file=secret_file) as master, FakeFollower(master) as follower:
        assert follower.master.needs_proof
        ours, theirs = follower.mine.nonce, follower.master.nonce
        proof = prove(SECRET, "follower", theirs, ours)
        follower.send(encode(follower.mine) + encode(Auth(proof)) + encode(EMPTY))
        follower.take_until(end)
        assert is_proof(follower.find(Auth).proof, SECRET, "master", theirs, ours)


def test_a_wrong_proof_is_refused(tmp_path: Path, secret_file: str) -> None:
    log = MemoryLog(tmp_path)
    with running_master(log, secret_file=secret_file) as master, FakeFollower(master) as follower:
        follower.send(encode(follower.mine) + encode(Auth(bytes(32))) + encode(EMPTY))
        assert follower.find(Refused).code == "secret"
        assert follower.is_closed()


def test_nothing_is_served_without_the_proof(tmp_path: Path, secret_file: str) -> None:
    log = MemoryLog(tmp_path)
    log.put()
    with running_master(log, secret_file=secret_file) as master:
        with FakeFollower(master) as follower:
            follower.ask(EMPTY)
            assert follower.is_closed()
        # RocketMQ's protocol has no secret.
        with WireTalk(master) as slave:
            slave.send(encode_report(0))
            assert slave.receive() == b""


def test_a_follower_that_needs_a_proof_is_told_that_there_is_none(tmp_path: Path) -> None:
    with running_master(MemoryLog(tmp_path)) as master, FakeFollower(master) as follower:
        follower.send(encode(attrs.evolve(follower.mine, needs_proof=True)))
        assert follower.find(Refused).code == "secret"


def test_another_version_is_refused(tmp_path: Path) -> None:
    with running_master(MemoryLog(tmp_path)) as master, FakeFollower(master) as follower:
        follower.send(encode(attrs.evolve(follower.mine, version=WIRE_VERSION + 1)))
        assert follower.find(Refused).code == "version"


def test_a_frame_out_of_order_ends_the_connection(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    end = log.put()
    with running_master(log) as master:
        for wrong in (
            encode(EMPTY),
            encode(Ack(0, 0)),
            b"garbage, of which the first bytes are a length",
        ):
            with FakeFollower(master) as follower:
                follower.send(wrong)
                assert follower.is_closed()
        with FakeSlave(master) as slave:
            slave.take_until(end)


def test_what_a_master_says_of_itself_is_of_now(tmp_path: Path) -> None:
    log = MemoryLog(tmp_path)
    parts = Mock(log=log, history="ab" * 16, epochs=((1, 0),), secret=None)
    shake = Handshake(parts, Mock(), Mock())
    first = shake.hello()
    end = log.put()
    second = shake.hello()
    assert (first.end_offset, second.end_offset) == (0, end)
    assert first.nonce == second.nonce
