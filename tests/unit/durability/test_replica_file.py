"""The file `penstock/replica`: what it says, and that no content of it makes a follower writable."""

import json
from pathlib import Path

import pytest
from tests.following import follow, reader

import penstock
from penstock.durability.replica_file import (
    EPOCHS_MAX,
    FOLLOWER,
    Epoch,
    Replica,
    ReplicaFile,
    about_replica,
    is_follower,
    replica_of,
)
from penstock.errors import CorruptionError, FollowerError
from penstock.files import Files

HISTORY = "0123456789abcdef" * 2


def some(**more: object) -> Replica:
    given = {
        "history": HISTORY, "role": FOLLOWER, "master": "host:10912", "master_kind": "penstock",
        "epochs": (Epoch(epoch=0, start_offset=0), Epoch(epoch=3, start_offset=4711)), **more,
    }  # fmt: skip
    return Replica(**given)  # type: ignore[arg-type] # hostile values are the point


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = ReplicaFile(Files(), tmp_path)
    assert file.read() is None
    assert not is_follower(Files(), tmp_path)
    for each in (some(), some(master=None, master_kind=None, epochs=()), some(role="master")):
        file.write(each)
        assert ReplicaFile(Files(), tmp_path).read() == each
        assert is_follower(Files(), tmp_path) == (each.role == FOLLOWER)


def test_a_promotion_begins_an_epoch_and_forgets_those_after_the_end() -> None:
    assert some(epochs=()).epoch == 0
    made = some().promoted(5000)
    assert (made.role, made.master, made.epoch) == ("master", None, 4)
    assert made.epochs[-1] == Epoch(epoch=4, start_offset=5000)
    # The end was cut before the third epoch.
    assert [each.epoch for each in some().promoted(100).epochs] == [0, 4]
    many = tuple(Epoch(epoch=n, start_offset=n) for n in range(EPOCHS_MAX))
    assert len(some(epochs=many).promoted(EPOCHS_MAX).epochs) == EPOCHS_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"history": "x" * 32}, {"history": 7}, {"role": "boss"}, {"role": None}, {"master": ""},
        {"master": "a\nb"}, {"master": 7}, {"master": "x" * 999}, {"master_kind": "kafka"},
        {"epochs": {}}, {"epochs": [[1]]}, {"epochs": [[1, 0], [1, 5]]}, {"epochs": [[0, 9], [1, 5]]},
        {"epochs": [[0, -1]]}, {"epochs": [[0, 1 << 63]]}, {"epochs": [[True, 0]]},
        {"epochs": [[n, n] for n in range(EPOCHS_MAX + 1)]},
    ],
)  # fmt: skip
def test_a_hostile_content_is_named(change: dict[str, object]) -> None:
    about = {**about_replica(some()), **change}
    with pytest.raises((ValueError, TypeError)):
        replica_of(about)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff" * 9, b"[" * 100_000, b'{"about": {}, "crc32": 0}']
)
def test_a_store_whose_role_cannot_be_read_is_only_read(tmp_path: Path, content: bytes) -> None:
    root = tmp_path / "store"
    follow(root).close()
    path = root / "penstock" / "replica"
    path.write_bytes(content)
    for call in (lambda: penstock.open(root, environ={}), lambda: follow(root)):
        with pytest.raises(CorruptionError, match="penstock/replica is corrupt"):
            call()
    assert not is_follower(Files(), root)
    with reader(root) as store:
        assert [each.path for each in store.verify(deep=True)] == [path]
    assert path.read_bytes() == content


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    file = ReplicaFile(Files(), tmp_path)
    file.write(some())
    whole = json.loads(file.path.read_bytes())
    whole["about"]["role"] = "master"
    file.path.write_text(json.dumps(whole))
    with pytest.raises(CorruptionError, match="CRC does not match"):
        file.read()


def test_a_copy_of_the_folder_follows_too(tmp_path: Path) -> None:
    from penstock.testing.kit import copy_files  # noqa: PLC0415 - only here

    follow(tmp_path / "store").close()
    copy = copy_files(tmp_path / "store", tmp_path / "copy")
    with pytest.raises(FollowerError, match="read_only=True"):
        penstock.open(copy, environ={})
