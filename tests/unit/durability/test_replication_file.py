"""The file with which other processes learn how far the copies are."""

from pathlib import Path

import pytest

from penstock.contracts import SummaryLine
from penstock.durability.replica_file import Replica, ReplicaFile
from penstock.durability.replication_file import ReplicationFile
from penstock.files import Files

LINES = [SummaryLine("replication", "replication", "master", {"copies": 1})]


@pytest.fixture
def file(tmp_path: Path) -> ReplicationFile:
    (tmp_path / "penstock").mkdir()
    return ReplicationFile(Files(), tmp_path)


def test_what_is_written_is_read(file: ReplicationFile) -> None:
    assert file.read(0) == []
    for _ in range(2):
        file.write(LINES, 1000)
        assert file.read(5000) == LINES


def test_old_lines_say_how_old_they_are(file: ReplicationFile) -> None:
    file.write(LINES, 1000)
    (line,) = file.read(61_000)
    assert line.text == "master (last known, 60 s ago)"


def test_a_left_copy_of_a_crash_does_not_stop_the_next_write(file: ReplicationFile, tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "penstock" / "replication.new").write_bytes(b"half")
    file.write(LINES, 1000)
    assert file.read(1000) == LINES


def test_removing_twice_is_fine(file: ReplicationFile) -> None:
    file.write(LINES, 1000)
    file.remove()
    file.remove()
    assert file.read(0) == []


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 100, b"[]", b"{}", b'{"time_ms": "x", "lines": []}', b'{"time_ms": 1, "lines": [[1, 2]]}', b"\xff\xfe",
        b'{"time_ms": 1, "lines": [[1, 2, 3, 4]]}', b'{"time_ms": 1e999, "lines": []}', b"[" * 100_000, b"x" * (2 << 20),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_ignored(file: ReplicationFile, tmp_path: Path, content: bytes) -> None:  # fmt: skip
    (tmp_path / "penstock" / "replication").write_bytes(content)
    assert file.read(0) == []


def test_a_follower_without_a_process_says_its_role(tmp_path: Path) -> None:
    replica = Replica(history="ab" * 16, role="follower", master="10.0.0.2:10912")
    ReplicaFile(Files(), tmp_path).write(replica)
    (line,) = ReplicationFile(Files(), tmp_path).read(5)
    assert line.text == "follower of 10.0.0.2:10912, epoch 0; no process lets it follow now"
    ReplicaFile(Files(), tmp_path).write(replica.promoted(0))
    assert ReplicationFile(Files(), tmp_path).read(5) == []
    (tmp_path / "penstock" / "replica").write_bytes(b"?")
    assert ReplicationFile(Files(), tmp_path).read(5) == []
