"""The status file: what is written is read; what is not understood counts as no file."""

import json
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from penstock.files import Files
from penstock_replicate.roles.status_file import (
    STALE_MS,
    PeerStatus,
    ReplicaStatus,
    StatusFile,
    peers_of,
)

COPY = PeerStatus(name="10.0.0.2:40000", kind="penstock", received_offset=90, flushed_offset=None)
STATUS = ReplicaStatus(role="master", state="listening", pid=7, time_ms=5, copies=(COPY,))


@pytest.fixture
def file(tmp_path: Path) -> StatusFile:
    (tmp_path / "penstock").mkdir()
    return StatusFile(Files(), tmp_path)


def test_what_is_written_is_read(file: StatusFile) -> None:
    assert file.read() is None
    for pid in (1, 2):
        file.write(attrs.evolve(STATUS, pid=pid))
        assert file.read() == attrs.evolve(STATUS, pid=pid)
    assert [path.name for path in file.path.parent.iterdir()] == ["replica-status"]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"role": "master"}',
        json.dumps(attrs.asdict(attrs.evolve(STATUS, pid=True))).encode(),
        json.dumps({**attrs.asdict(STATUS), "copies": 3}).encode(),
        json.dumps({**attrs.asdict(STATUS), "copies": [3]}).encode(),
        json.dumps({**attrs.asdict(STATUS), "lag_ms": "much"}).encode(),
        json.dumps({**attrs.asdict(STATUS), "lag_bytes": 10**400}).encode(),
        b" " * ((1 << 20) + 1),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_no_status(file: StatusFile, content: bytes) -> None:
    file.path.write_bytes(content)
    assert file.read() is None


def test_a_field_of_a_later_version_is_passed_over(file: StatusFile) -> None:
    file.path.write_bytes(json.dumps({**attrs.asdict(STATUS), "moon": "full"}).encode())
    assert file.read() == STATUS


def test_a_status_that_nobody_renews_is_stale() -> None:
    assert STATUS.is_fresh(STATUS.time_ms + STALE_MS - 1)
    assert not STATUS.is_fresh(STATUS.time_ms + STALE_MS)


def test_the_copies_of_a_replicator_are_taken_over() -> None:
    state = SimpleNamespace(**attrs.asdict(COPY), more=1)
    assert peers_of([state]) == (COPY,)
