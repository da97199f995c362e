"""Whose log it is."""

from pathlib import Path

from penstock.durability.replica_file import ReplicaFile
from penstock.durability.written_ranges import read_ranges
from penstock.files import Files
from penstock_replicate.ship.identity import Identity, identity_of, write_doubts, write_restored


def test_a_history_begins_once(tmp_path: Path) -> None:
    first = identity_of(Files(), tmp_path)
    assert identity_of(Files(), tmp_path) == first
    assert first.epoch == 0


def test_a_restored_store_is_a_master_in_a_new_epoch(tmp_path: Path) -> None:
    history = "ab" * 16
    assert write_restored(Files(), tmp_path, Identity(history=history, epoch=4), 99) == 5
    found = ReplicaFile(Files(), tmp_path).read()
    assert found is not None
    assert (found.history, found.role, found.epoch) == (history, "master", 5)
    assert found.epochs[-1].start_offset == 99
    write_doubts(Files(), tmp_path, 99)
    ranges = read_ranges(Files(), tmp_path)
    assert ranges is not None
    assert ranges.perhaps == ((0, 99),)
