"""Folders that several processes make at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.files import Files
from penstock.testing.disk import SimulatedDisk


class Racing(Files):
    """Another process makes the folder, or something else, between the look and the making."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.other = other

    def is_folder(self, path: Path) -> bool:
        was_there = super().is_folder(path)
        if not was_there and self.other == "folder":
            path.mkdir()
        elif not was_there and not path.exists():
            path.touch()
        return was_there


def test_a_folder_that_another_process_makes_meanwhile_is_taken(tmp_path: Path) -> None:
    """Tasks of a reindex made the folder of one shard's rows together, and one of them failed."""
    assert Racing("folder").make_folder(tmp_path / "a") == [tmp_path]
    assert (tmp_path / "a").is_dir()


def test_a_file_in_place_of_a_folder_is_not(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        Racing("file").make_folder(tmp_path / "a")


@pytest.mark.parametrize("make", [Files, SimulatedDisk])
def test_quick_lists_tell_what_entries_do(make: Callable[[], Files], tmp_path: Path) -> None:
    """Names that are digits in another script are none, nor are folders of such names files."""
    files = make()
    for name in ("12", "b", "a"):
        files.make_folder(tmp_path / name)
    for name, size in (("00000000000000000030", 7), ("4", 0), ("x5", 1), ("٣", 1), ("6.new", 1)):
        file = files.create(tmp_path / name)
        file.pwrite(bytes(size), 0)
        file.close()
    entries = files.entries(tmp_path)
    assert files.folders(str(tmp_path)) == [e.name for e in entries if e.is_folder]
    assert files.folders(str(tmp_path)) == ["12", "a", "b"]
    assert files.numbered(str(tmp_path)) == [(4, 0), (30, 7)]
