"""A group imports the module of a command only to run it, and helps with a mistyped name."""

import sys
from pathlib import Path

import click
import pytest

from penstock.cli import root
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.verbs import SUMMARIES

VERB = '''
import click

@click.command("{name}")
def command():
    """Do {name}. And more."""
    print("ran {name}")
'''


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    package = tmp_path / "lazy_verbs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("alpha", "beta", "import"):
        (package / f"{name}.py").write_text(VERB.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("lazy_verbs")]:
        monkeypatch.delitem(sys.modules, name)
    return LazyGroup("g", package="lazy_verbs", summaries={"alpha": "Do alpha.", "import": "x"})


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("lazy_verbs.")}


def test_help_imports_only_what_has_no_summary(
    group: LazyGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["--help"], group) == 0
    shown = capsys.readouterr().out
    assert "alpha   Do alpha." in shown
    assert "beta    Do beta." in shown
    assert imported() == {"lazy_verbs.beta"}


def test_a_command_is_imported_alone(group: LazyGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["import"], group) == 0
    assert capsys.readouterr().out == "ran import\n"
    assert imported() == {"lazy_verbs.import"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [("alhpa", "did you mean alpha?"), ("Beta", "did you mean beta?"), ("zzz", "the help lists")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    group: LazyGroup, capsys: pytest.CaptureFixture[str], typed: str, said: str
) -> None:
    assert root.run([typed], group) == 2
    done = capsys.readouterr()
    assert f"no command {typed!r}; {said}" in done.err
    assert not imported()


def test_a_mistyped_option_is_no_command(
    group: LazyGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["--hlep"], group) == 2
    assert "--help" in capsys.readouterr().err


def test_the_summary_of_a_verb_is_what_the_verb_says() -> None:
    assert isinstance(root.cli, LazyGroup)
    names = root.own_verbs()
    shown = root.cli.shown_commands(click.Context(root.cli))
    assert {name: shown[name] for name in names} == {
        name: root.cli.load(name).get_short_help_str(1000) for name in names
    }
    assert set(SUMMARIES) == set(names), "each verb has one, so that --help imports none"
