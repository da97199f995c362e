"""The right to a queue: one holder, who is named."""

import os
from pathlib import Path

from penstock.files import Files
from penstock.testing.disk import SimulatedDisk
from penstock_messaging.groups.queue_lock import holder_of, take_lock


def test_one_holder_at_a_time_who_is_named(tmp_path: Path) -> None:
    path = tmp_path / "0.lock"
    assert holder_of(Files(), path) is None
    held = take_lock(Files(), path, "5-ab")
    assert held is not None
    assert take_lock(Files(), path, "6-cd") is None
    assert holder_of(Files(), path) == f"process {os.getpid()}, member 5-ab"
    held.release()
    held.release()
    assert holder_of(Files(), path) is None
    assert take_lock(Files(), path, "6-cd") is not None


def test_a_lock_whose_file_was_removed_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "0.lock"
    held = take_lock(Files(), path, "5-ab")
    assert held is not None
    path.unlink()
    other = take_lock(Files(), path, "6-cd")
    assert other is not None
    assert (held.is_held, other.is_held) == (False, True)


def test_a_holder_whose_name_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "0.lock"
    held = take_lock(Files(), path, "5-ab")
    for raw in (b"", b"[]", b'{"pid":[]}', b'{"pid":1e999,"member":""}', b"\xff"):
        path.write_bytes(raw)
        assert holder_of(Files(), path) == "an unknown process"
    del held


def test_a_simulated_disk_locks_likewise() -> None:
    disk, path = SimulatedDisk(), Path("/0.lock")
    held = take_lock(disk, path, "5-ab")
    assert held is not None
    assert take_lock(disk, path, "6-cd") is None
    disk.remove(path)
    assert not held.is_held
    assert take_lock(disk, path, "6-cd") is not None
