"""A follower's files beside the log are replaced durably, with a `.bak`, and by nothing that was not checked."""

import errno
from pathlib import Path

import pytest
from tests.conftest import power_cut
from tests.unit.penstock_replicate.test_side_names import GOOD

from penstock.errors import StorageError
from penstock.files import Files
from penstock.testing import FaultyFiles, KilledError, SimulatedDisk
from penstock_replicate.beside.applying import apply
from penstock_replicate.beside.side_names import SIDE_NAMES

TOPICS = "config/topics.json"
OTHER = b'{"topicConfigTable":{"other":{}}}'


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_files_are_written_where_they_belong(tmp_path: Path) -> None:
    assert all(apply(Files(), tmp_path, name, data) for name, data in GOOD.items())
    assert contents(tmp_path) == GOOD


def test_the_same_content_changes_nothing(tmp_path: Path) -> None:
    apply(Files(), tmp_path, TOPICS, GOOD[TOPICS])
    before = Files().inode(tmp_path / TOPICS)
    assert not apply(Files(), tmp_path, TOPICS, GOOD[TOPICS])
    assert Files().inode(tmp_path / TOPICS) == before
    assert contents(tmp_path) == {TOPICS: GOOD[TOPICS]}


def test_the_content_before_is_kept_as_a_broker_keeps_it(tmp_path: Path) -> None:
    for name, data in GOOD.items():
        apply(Files(), tmp_path, name, data)
    for name in SIDE_NAMES:
        if name.endswith(".json"):
            apply(Files(), tmp_path, name, GOOD[name] + b"\n")
            assert (tmp_path / f"{name}.bak").read_bytes() == GOOD[name]
    apply(Files(), tmp_path, "config/timercheck", bytes(55) + b"\1" + bytes(4040))
    spares = {name for name in contents(tmp_path) if name.endswith(".bak")}
    assert spares == {f"{name}.bak" for name in SIDE_NAMES if name.endswith(".json")}


def test_what_cannot_be_read_does_not_become_the_spare(tmp_path: Path) -> None:
    apply(Files(), tmp_path, TOPICS, GOOD[TOPICS])
    apply(Files(), tmp_path, TOPICS, OTHER)
    (tmp_path / TOPICS).write_bytes(b"")
    apply(Files(), tmp_path, TOPICS, OTHER + b"\n")
    assert contents(tmp_path) == {TOPICS: OTHER + b"\n", f"{TOPICS}.bak": GOOD[TOPICS]}


def test_a_follower_keeps_its_own_number_of_the_store(tmp_path: Path) -> None:
    name = "penstock/store-id"
    apply(Files(), tmp_path, name, GOOD[name])
    assert not apply(Files(), tmp_path, name, b"f" * 16 + b"\n")
    assert (tmp_path / name).read_bytes() == GOOD[name]


@pytest.mark.parametrize("name", ["../evil", "config/topics.json.bak", "penstock/replica"])
def test_nothing_else_is_ever_written(tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    with pytest.raises(ValueError, match="travels"):
        apply(Files(), root, name, b"{}")
    with pytest.raises(ValueError, match="cannot be used"):
        apply(Files(), root, TOPICS, b"{")
    assert contents(tmp_path) == {}


def test_a_disk_that_is_full_leaves_the_content_before(tmp_path: Path) -> None:
    files = FaultyFiles()
    apply(files, tmp_path, TOPICS, GOOD[TOPICS])
    files.plan.fail("rename", errno.ENOSPC)
    with pytest.raises(StorageError, match=r"topics\.json could not be written"):
        apply(files, tmp_path, TOPICS, OTHER)
    assert (tmp_path / TOPICS).read_bytes() == GOOD[TOPICS]


def test_a_crash_leaves_the_old_content_or_the_new_at_each_call() -> None:
    root, disk = Path("/store"), SimulatedDisk()
    for count in range(1, 30):
        disk = SimulatedDisk()
        disk.make_folder_durably(root)
        apply(disk, root, TOPICS, GOOD[TOPICS])
        disk.plan.die_at(count)
        try:
            apply(disk, root, TOPICS, OTHER)
            assert count > 5
            break
        except KilledError:
            after = power_cut(disk)
            assert after.read_whole(root / TOPICS) in (GOOD[TOPICS], OTHER)
    after = power_cut(disk)
    assert after.read_whole(root / TOPICS) == OTHER
    assert after.read_whole(root / f"{TOPICS}.bak") == GOOD[TOPICS]
