"""Names are as volatile as bytes: each waits for its folder, and none outlives what it stands on."""

from pathlib import Path
from random import Random

import pytest

from penstock.testing.platter import ROOT, Platter, Survival


def cut(platter: Platter, survival: Survival, seed: int = 0) -> Platter:
    return Platter.after(platter.image(), survival, Random(seed))


def synced(platter: Platter, path: str) -> None:
    folder = platter.find(Path(path))
    assert folder is not None
    platter.sync_folder(folder)


@pytest.fixture
def platter() -> Platter:
    made = Platter()
    made.make(Path("/f"), is_folder=True, mtime_ns=0)
    synced(made, "/")
    made.make(Path("/f/a"), is_folder=False, mtime_ns=0)
    return made


def test_a_name_is_durable_once_its_folder_was_synced(platter: Platter) -> None:
    assert cut(platter, Survival.NONE).find(Path("/f/a")) is None
    assert cut(platter, Survival.ALL).find(Path("/f/a")) is not None
    assert cut(platter, Survival.PROCESS).find(Path("/f/a")) is not None
    synced(platter, "/f")
    assert cut(platter, Survival.NONE).find(Path("/f/a")) is not None


def test_a_rename_is_one_step(platter: Platter) -> None:
    synced(platter, "/f")
    inode = platter.find(Path("/f/a"))
    assert inode is not None
    platter.change((Path("/f/a"), 0), (Path("/f/b"), inode.number), inode=inode.number)
    for seed in range(40):
        crashed = cut(platter, Survival.PAGES, seed)
        found = [crashed.find(Path("/f") / name) is not None for name in "ab"]
        assert sorted(found) == [False, True]


def test_a_change_never_outlives_one_that_it_stands_on(platter: Platter) -> None:
    inode = platter.find(Path("/f/a"))
    assert inode is not None
    platter.change((Path("/f/a"), 0), (Path("/f/b"), inode.number), inode=inode.number)
    for seed in range(40):
        crashed = cut(platter, Survival.SECTORS, seed)
        assert crashed.find(Path("/f/b")) is None or crashed.find(Path("/f/a")) is None


def test_what_no_name_leads_to_is_gone(platter: Platter) -> None:
    synced(platter, "/f")
    inode = platter.find(Path("/f/a"))
    assert inode is not None
    platter.change((Path("/f/a"), 0), inode=inode.number)
    assert inode.number in platter.inodes, "the medium still has its name"
    synced(platter, "/f")
    assert set(platter.inodes) == {ROOT, inode.number - 1}


def test_a_folder_that_is_removed_with_pending_renames_in_it_can_be_cut_off_at_any_of_them(platter: Platter) -> None:  # fmt: skip
    """A topic was deleted right after its first message: its queue's folder was gone from the medium, the rename in it was not."""
    inode, folder = platter.find(Path("/f/a")), platter.find(Path("/f"))
    assert inode is not None
    assert folder is not None
    platter.change((Path("/f/a"), 0), (Path("/f/b"), inode.number), inode=inode.number)
    platter.change((Path("/f/b"), 0), inode=inode.number)
    platter.change((Path("/f"), 0), inode=folder.number)
    synced(platter, "/")
    for survival in Survival:
        for seed in range(20):
            assert cut(platter, survival, seed).find(Path("/f")) is None
