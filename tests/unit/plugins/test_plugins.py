"""Plugins: their entry points are searched once, their hooks checked, and what is wrong with one stops nothing else."""

import importlib.metadata
import logging
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import InstallPlugin

from penstock.plugins.loading import EntryPoint, PluginStatus, discover, load_commands, load_plugins


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders that are listed from now on; the path is another one, which nobody has searched."""
    found: list[Path] = []
    whole = Path.iterdir

    def noted(folder: Path) -> Iterator[Path]:
        found.append(folder)
        return whole(folder)

    monkeypatch.setattr(Path, "iterdir", noted)
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


def test_a_second_search_reads_nothing(listed: list[Path]) -> None:
    first = discover("penstock")
    folders = list(listed)
    assert folders
    assert discover("penstock") == first
    assert listed == folders
    assert discover("none") == ()
    assert listed == folders * 2


class Finder:
    """Something else than Python's own that can find distributions: then Python is asked."""

    @staticmethod
    def find_distributions(*_: object) -> list[object]:
        return []

    @staticmethod
    def find_spec(*_: object) -> None:
        return None


@pytest.mark.slow
def test_what_is_found_is_what_python_finds(
    install_plugin: InstallPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of folders is our own, since importlib.metadata is slow to import: this keeps the two equal."""
    install_plugin("one-more", "")
    groups = ("penstock", "console_scripts", "pytest11")
    quick = {group: discover(group) for group in groups}
    # On another path, or the first answer would be given again.
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    for group in groups:
        assert sorted(quick[group]) == sorted(discover(group))
        assert len(quick[group]) == len(importlib.metadata.entry_points(group=group)) > 0


def test_a_zip_and_another_finder_are_searched_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("packed-3.dist-info/entry_points.txt", "[penstock]\np = packed\n")
        file.writestr("packed-3.dist-info/METADATA", "Name: packed\nVersion: 3\n")
    monkeypatch.setattr(sys, "path", [str(packed), *sys.path])
    assert discover("penstock")[0] == (EntryPoint("p", "packed", "penstock"), "packed", "3")

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {(each.entry_point.name, *each[1:]) for each in discover("penstock")}
    assert ("p", "packed", "3") in found


COMMAND = """
import click
from penstock import hookimpl

@click.command("{name}")
def verb():
    "A verb of a plugin."

@hookimpl
def penstock_register_commands():
    {body}

@hookimpl
def penstock_register_flush():
    raise AssertionError("nobody asked for strategies")
"""


def names() -> set[str]:
    return {str(getattr(each, "name", "")) for each in load_commands()}


def test_commands_come_without_strategies(install_plugin: InstallPlugin) -> None:
    before = names()
    install_plugin("with-command", COMMAND.format(name="extra", body="return [verb]"))
    assert names() - before == {"extra"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('no such thing')", "set aside"),
        (
            COMMAND.format(name="x", body="raise RuntimeError('broken')"),
            "failed to add its commands",
        ),
    ],
)
def test_a_plugin_that_fails_takes_no_other_command_with_it(
    install_plugin: InstallPlugin, caplog: pytest.LogCaptureFixture, source: str, said: str
) -> None:
    before = names()
    install_plugin("failing", source)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert names() == before
    assert said in caplog.text


def test_a_blocked_plugin_is_not_imported(install_plugin: InstallPlugin) -> None:
    install_plugin("blocked-one", "raise AssertionError('imported')")
    _, infos = load_plugins(["blocked_one"])
    (found,) = [info for info in infos if info.entry_point == "blocked_one"]
    assert found.status is PluginStatus.BLOCKED
