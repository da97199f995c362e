"""Entry points are searched for once, and again when what is installed may have changed."""

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin

from penstock.plugins import discovery
from penstock.plugins.discovery import discover


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The groups that installed distributions were searched for."""
    made: list[str] = []

    def entry_points(**given: str) -> Any:
        made.append(given["group"])
        return importlib.metadata.entry_points(**given)

    monkeypatch.setattr(discovery, "entry_points", entry_points)
    discovery._search.cache_clear()
    yield made
    discovery._search.cache_clear()


def names(group: str = "penstock") -> set[tuple[str, str, str]]:
    return {(found.entry_point.name, *found[1:]) for found in discover(group)}


def test_a_second_search_reads_nothing(searches: list[str]) -> None:
    assert discover("penstock") == discover("penstock")
    assert discover("none") == ()
    assert searches == ["penstock", "none"]


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
    assert len(searches) >= 3


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
    assert searches == ["penstock"] * 2


def test_a_distribution_that_states_nothing_has_question_marks(
    searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = importlib.metadata.EntryPoint("x", "x", "penstock")
    monkeypatch.setattr(discovery, "entry_points", lambda **_given: [alone])
    assert discover("penstock") == ((alone, "?", "?"),)
    assert not searches
