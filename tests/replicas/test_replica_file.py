"""The file `penstock/replica`: who may write, and which bytes of a log its copies may have otherwise."""

import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.replicas.logs import ROOT, SETTINGS

import penstock
from penstock import Message
from penstock.contracts import Epoch, Replica
from penstock.durability.replica_file import (
    EPOCHS_MAX,
    ensure_master,
    note_unclean_opening,
    read_replica,
    read_status,
    write_replica,
    write_status,
)
from penstock.errors import CorruptionError, FollowerError
from penstock.files import Files
from penstock.format.record import crc32
from penstock.testing import SimulatedDisk
from penstock_tools.segmentwise.checkup import start_reindex

OWN = "0123456789abcdef"
SOME = Replica(
    history=OWN * 2, store=OWN, role="follower", master="host:10912", protocol="penstock",
    epochs=(Epoch(0, 0, 0, OWN), Epoch(0, 1, 500, OWN), Epoch(2, 0, 4711, "f" * 16)),
)  # fmt: skip


def plain_store(root: Path) -> None:
    with penstock.open(root, environ={}, **SETTINGS) as store:
        store.put("t", b"1")


def listing(root: Path) -> list[tuple[str, int, int]]:
    found = [(str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in root.rglob("*")]
    return sorted(found)


class Late(Files):
    """A store that another process makes a follower just before it is locked."""

    def lock(self, path: Path) -> Any:
        write_replica(Files(), path.parent, SOME)
        return super().lock(path)


def test_a_follower_is_refused_to_whatever_would_write_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    plain_store(tmp_path)
    with pytest.raises(FollowerError):
        penstock.open(tmp_path, environ={}, files=Late())
    assert read_replica(Files(), tmp_path) == SOME
    (tmp_path / "lock").unlink()
    before = listing(tmp_path)
    for call in (
        lambda: penstock.open(tmp_path, environ={}),
        lambda: penstock.repair(tmp_path, apply=True, environ={}),
        lambda: start_reindex(tmp_path, shards=1),
    ):
        with pytest.raises(FollowerError, match="follows host:10912") as raised:
            call()
        assert (raised.value.path, raised.value.master) == (tmp_path, "host:10912")
    assert listing(tmp_path) == before
    with penstock.open(tmp_path, read_only=True, environ={}) as store:
        assert [m.body for m in store.scan("t")] == [b"1"]
    write_replica(Files(), tmp_path, attrs.evolve(SOME, role="master"))
    with penstock.open(tmp_path, environ={}):
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"history": "x" * 32}, {"history": 7}, {"role": "boss"}, {"role": None}, {"master": ""},
        {"master": "a\nb"}, {"master": 7}, {"protocol": "x" * 999}, {"epochs": {"a": 1}}, {"epochs": [[1]]},
        {"epochs": [[1, 0, 0, OWN], [1, 0, 5, OWN]]}, {"epochs": [[0, 0, -1, OWN]]}, {"epochs": None},
        {"epochs": [[0, 0, True, OWN]]}, {"epochs": [[0, 0, 1 << 63, OWN]]}, {"epochs": [[0, 0, 0, 0]]},
        {"epochs": [[n, 0, n, OWN] for n in range(EPOCHS_MAX + 1)]}, {"store": ""}, {"more": 1},
    ],
)  # fmt: skip
def test_no_content_makes_a_follower_writable(change: dict[str, Any], tmp_path: Path) -> None:
    plain_store(tmp_path)
    write_replica(Files(), tmp_path, SOME)
    path = tmp_path / "penstock" / "replica"
    about = {**json.loads(path.read_text())["about"], **change}
    for crc in (crc32(json.dumps(about).encode()), 0):
        path.write_text(json.dumps({"about": about, "crc32": crc}))
        with pytest.raises(CorruptionError, match="make the copy anew"):
            penstock.open(tmp_path, environ={})
    for text in (b"", b"[]", b"\xff", b"[" * 5000, b'{"about":null,"crc32":0}'):
        path.write_bytes(text)
        with pytest.raises(CorruptionError):
            penstock.open(tmp_path, environ={})
    with penstock.open(tmp_path, read_only=True, environ={}) as store:
        assert [m.body for m in store.scan("t")] == [b"1"]
        assert any("valid content" in each.text for each in store.verify(deep=True))


def test_the_list_of_epochs_is_bounded_and_has_no_part_that_is_gone() -> None:
    disk = SimulatedDisk()
    found = ensure_master(disk, ROOT, 100)
    assert found == read_replica(disk, ROOT)
    for start, starts in ((100, [100, 100]), (700, [100, 100, 700]), (650, [100, 100, 650])):
        note_unclean_opening(disk, ROOT, start, is_copy=False)
        found = ensure_master(disk, ROOT, 9999)
        assert [one.start for one in found.epochs][1:] == [one for one in starts[1:] if one < start] + [start]  # fmt: skip
    assert [one.opening for one in found.epochs] == [0, 1, 3]
    many = tuple(Epoch(n, 0, n, OWN) for n in range(EPOCHS_MAX))
    write_replica(disk, ROOT, attrs.evolve(found, epochs=many))
    note_unclean_opening(disk, ROOT, EPOCHS_MAX, is_copy=False)
    epochs = ensure_master(disk, ROOT, 0).epochs
    assert (len(epochs), epochs[0].number, epochs[-1][:3]) == (EPOCHS_MAX, 1, (EPOCHS_MAX - 1, 1, EPOCHS_MAX))  # fmt: skip


@pytest.mark.parametrize("keeps_times", [True, False])
def test_a_copied_folder_is_another_store_of_the_same_history(
    tmp_path: Path, keeps_times: bool
) -> None:
    with penstock.open(tmp_path / "a", environ={}, **SETTINGS) as store:
        first = ensure_master(Files(), tmp_path / "a", 0)
        store.put_many([Message("t", b"1"), Message("t", b"2")])
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copy2 if keeps_times else shutil.copy)  # fmt: skip
    penstock.open(tmp_path / "a", environ={}).close()
    with penstock.open(tmp_path / "b", environ={}) as store:
        end = store.stats()["log_end_offset"]
    other = ensure_master(Files(), tmp_path / "b", 0)
    assert ensure_master(Files(), tmp_path / "a", 0) == first
    assert other.history == first.history
    assert other.store != first.store
    assert other.epochs == (*first.epochs, Epoch(0, 1, end, other.store))


def test_a_status_is_what_was_published_or_nothing(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "penstock").mkdir()
    assert read_status(files, tmp_path) is None
    for _ in range(2):
        write_status(files, tmp_path, {"peers": [1]})
        write_status(files, tmp_path, {"too long": "x" * (64 << 10)})
        assert read_status(files, tmp_path) == {"peers": [1]}
    for text in (b"[]", b"[" * 5000, b"\xff", b"{} " * 40_000):
        (tmp_path / "penstock" / "replica-status").write_bytes(text)
        assert read_status(files, tmp_path) is None


def test_a_repair_begins_an_epoch_where_it_changes_the_log(tmp_path: Path) -> None:
    """It wrote a clean close, so the next opening began none, and copies had other bytes in the same epoch."""
    path = tmp_path / "s"
    with penstock.open(path, environ={}) as store:
        store.put("t", b"1")
        second = store.put("t", b"2" * 1000)
        store.put("t", b"3")
    before = ensure_master(Files(), path, 0)
    (segment,) = (path / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(second.log_offset + 500)
        file.write(b"?")
    assert penstock.repair(path, apply=True, cut=True).applied
    after = read_replica(Files(), path)
    assert after is not None
    assert after.epochs[:-1] == before.epochs[:1]
    assert after.epochs[-1].start <= second.log_offset
