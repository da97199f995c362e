"""The hash index: files of keys, which are full, lost, trimmed or made again."""

import errno
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.message import Message
from penstock.testing.faults import FaultyFiles
from penstock.testing.kit import open_store


def test_keys_are_indexed_once_where_the_disk_was_full_between_two_index_files(
    tmp_path: Path,
) -> None:
    """In version 0.1 the keys that had fitted into the full file were added again with the next try."""
    files = FaultyFiles()
    sizes: dict[str, Any] = {"geometry.index_entries": 11}
    with open_store(tmp_path / "s", files=files, **sizes) as store:
        files.plan.fail("create", errno.ENOSPC, path="new-index", after=1)
        store.put_many([Message("t", b"%d" % n, keys=[f"k{n}"]) for n in range(25)])
        with pytest.raises(penstock.errors.StorageError):
            store.find("t", "k3")
        files.plan.heal()
        for trouble in store._engine.follower.troubles.values():  # type: ignore[union-attr] # it writes
            trouble.again_at_ms = 0
        assert [len(store.find("t", f"k{n}")) for n in range(25)] == [1] * 25
        assert not list(store.verify())
        keys = store.stats()["dispatchers"]["hash-index"]
        assert keys["files"] * 10 - 10 + keys["keys_in_newest"] == 25
