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


def test_what_is_installed_later_is_found(
    searches: list[str], install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names()
    install_plugin("first-plugin", "")
    assert names() - before == {("first_plugin", "first-plugin", "1.0")}
    path = list(sys.path)
    install_plugin("second-plugin", "")
    monkeypatch.setattr(sys, "path", path)
    assert len(names() - before) == 2, "the same folders, one of which has changed"
    monkeypatch.setattr(sys, "path", path[1:])
    assert names() == before


def test_the_working_directory_is_a_folder_like_others(
    searches: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "none"), *sys.path])
    before = names()
    (tmp_path / "a_plugin-2.dist-info").mkdir()
    (tmp_path / "a_plugin-2.dist-info" / "entry_points.txt").write_text("[penstock]\nmine = mine\n")
    (tmp_path / "a_plugin-2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\n")
    monkeypatch.chdir(tmp_path)
    assert {found[0] for found in names() - before} == {"mine"}


def test_a_distribution_that_states_nothing_has_question_marks(
    searches: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "x.dist-info"
    place.mkdir()
    (place / "entry_points.txt").write_text(
        "[other]\ny = y\n\n[penstock]\n# x = no\nx = x.y:z.a [extra]\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert discover("penstock") == ((EntryPoint("x", "x.y:z.a [extra]", "penstock"), "?", "?"),)
    assert searches


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
