"""Which names a shell is offered."""

import json
import logging
from pathlib import Path

import click
import pytest
from tests.conftest import InstallPlugin

from penstock.cli.completion import complete, dead_letter_groups, groups, script, topics
from penstock.cli.root import cli

PARAMETER = click.Argument(["x"])


def context(path: Path | None) -> click.Context:
    made = click.Context(cli)
    made.params = {"path": path and str(path)}
    return made


def test_topics_are_the_plain_names_of_folders(tmp_path: Path) -> None:
    for name in ("orders", "%RETRY%g", "a b", "x;y", "$(z)"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "file").write_text("")
    assert topics(context(tmp_path), PARAMETER, "") == ["%RETRY%g", "orders"]
    assert topics(context(tmp_path), PARAMETER, "or") == ["orders"]
    assert topics(context(tmp_path / "no\0ne"), PARAMETER, "") == []
    assert topics(context(None), PARAMETER, "") == []


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"offsetTable": 5}', b'{"offsetTable": [5]}', b"\xff", b"[" * 10**5],
)
def test_offsets_that_cannot_be_read_offer_nothing(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_bytes(text)
    assert groups(context(tmp_path), PARAMETER, "") == []


def test_groups_are_those_of_the_offset_file(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    table: dict[str, dict[str, int]] = {"t@b": {}, "u@b": {}, "t@a": {}, "t": {}, "t@x y": {}}
    (tmp_path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    assert groups(context(tmp_path), PARAMETER, "") == ["a", "b"]


def test_groups_that_have_committed_nothing_yet_and_groups_with_dead_letters(
    tmp_path: Path,
) -> None:
    for name in ("penstock/groups/new", "consumequeue/%DLQ%old", "consumequeue/orders"):
        (tmp_path / name).mkdir(parents=True)
    assert groups(context(tmp_path), PARAMETER, "") == ["new"]
    assert dead_letter_groups(context(tmp_path), PARAMETER, "") == ["old"]
    assert dead_letter_groups(context(tmp_path), PARAMETER, "n") == []


def test_nobody_asks_without_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("_PENSTOCK_COMPLETE", raising=False)
    assert complete(cli) is None
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "fish_source")
    assert complete(cli) == 0
    assert "fish_complete" in capsys.readouterr().out
    assert "_penstock_completion" in script(cli, "zsh")


def test_a_warning_is_not_printed_into_the_line_that_is_typed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    install_plugin: InstallPlugin,
) -> None:
    """On a busy machine a plugin was reported as slow to import, in the middle of the command line."""
    install_plugin("broken-one", "raise ImportError('no')")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "penstock spa")
    monkeypatch.setenv("COMP_CWORD", "1")
    complete(cli)
    assert logging.getLogger().handlers == []
    assert capsys.readouterr().err == ""
