"""Entry points are searched for once, and again when what is installed may have changed."""

import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import InstallPlugin

from penstock.plugins import discovery
from penstock.plugins.discovery import Discovered, EntryPoint, discover


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The folders that were searched for distributions."""
    made: list[str] = []
    search = discovery._search_folder

    def recorded(group: str, folder: Path, names: set[str]) -> Iterator[Discovered]:
        made.append(group)
        return search(group, folder, names)

    monkeypatch.setattr(discovery, "_search_folder", recorded)
    discovery._search.cache_clear()
    yield made
    discovery._search.cache_clear()


def names(group: str = "penstock") -> set[tuple[str, str, str]]:
    return {(found.entry_point.name, *found[1:]) for found in discover(group)}


def test_a_second_search_reads_nothing(searches: list[str]) -> None:
    assert discover("penstock") == discover("penstock")
    folders = len(searches)
    assert discover("none") == ()
    assert searches == ["penstock"] * folders + ["none"] * folders


@pytest.mark.slow
def test_what_is_found_is_what_python_finds(
    install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of folders is our own, since importlib.metadata is slow to import: this keeps the two equal."""
    install_plugin("one-more", "")
    discovery._search.cache_clear()
    for group in ("penstock", "console_scripts", "pytest11"):
        quick = discover(group)
        slow = tuple(discovery._search_slowly(group, None))
        assert sorted(quick) == sorted(slow)
        assert len(quick) == len(importlib.metadata.entry_points(group=group)) > 0


def test_a_zip_and_another_finder_are_searched_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("packed-3.dist-info/entry_points.txt", "[penstock]\np = packed\n")
        file.writestr("packed-3.dist-info/METADATA", "Name: packed\nVersion: 3\n")
    monkeypatch.setattr(sys, "path", [str(packed), *sys.path])
    assert discover("penstock")[0] == (EntryPoint("p", "packed", "penstock"), "packed", "3")

    class Finder:
        @staticmethod
        def find_distributions(*_: object) -> list[object]:
            return []

        @staticmethod
        def find_spec(*_: object) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    discovery._search.cache_clear()
    assert ("p", "packed", "3") in names()


def test_an_entry_point_is_a_module_or_a_part_of_one() -> None:
    assert EntryPoint("a", "os", "g").load() is os
    assert EntryPoint("a", "os:path.join", "g").load() is os.path.join
    with pytest.raises(ModuleNotFoundError):
        EntryPoint("a", "no_such_module_at_all", "g").load()
