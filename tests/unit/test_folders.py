"""Folders that several processes make at once."""

from pathlib import Path

import pytest

from penstock.files import Files


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
