"""How commands are found, completed and run: names, options at any place, times and errors."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import InstallPlugin

from penstock import errors
from penstock.escape import follow_level, get_logger, set_level
from penstock.format.times import parse_duration, parse_time
from penstock.testing import ManualClock
from penstock_tools.cli import root
from penstock_tools.cli.completion import complete, dead_letter_groups, groups, script
from penstock_tools.cli.lazy_group import LazyGroup
from penstock_tools.cli.output import time_text
from penstock_tools.cli.root import cli, code_of, run
from penstock_tools.cli.times import (
    BEGIN,
    DurationParam,
    TimeParam,
    check_order,
)
from penstock_tools.cli.verbosity import log_more, with_verbose
from penstock_tools.cli.verbs import SUMMARIES

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


def test_the_summary_of_a_verb_is_what_the_verb_says() -> None:
    assert isinstance(root.cli, LazyGroup)
    names = root.own_verbs()
    shown = root.cli.shown_commands(click.Context(root.cli))
    assert {name: shown[name] for name in names} == {
        name: root.cli.load(name).get_short_help_str(1000) for name in names
    }
    assert set(SUMMARIES) == set(names), "each verb has one, so that --help imports none"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreClosedError(), 4), (errors.TopicError("t", "no"), 2), (errors.ConfigError("no"), 2),
        (errors.OffsetError(1, 2, 3), 1), (errors.StoreFailedError("no", 0), 5), (errors.BusyError("x", 1), 4),
        (errors.PluginError("no"), 2), (errors.QueueHeldError("g", "t", 0, "process 1"), 3), (OSError("no"), 4), (errors.PenstockError("no"), 2),
    ],
)  # fmt: skip
def test_an_error_has_its_exit_code_and_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def verb() -> None:
        raise error

    assert code_of(error) == code
    assert run([], verb) == code
    assert capsys.readouterr().err.startswith("penstock: ")


def test_usage_an_interrupt_and_a_closed_pipe_have_codes_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for raised, code in ((KeyboardInterrupt(), 130), (BrokenPipeError(), 141), (click.UsageError("a\x1b"), 2)):  # fmt: skip

        @click.command()
        def verb(raised: BaseException = raised) -> None:
            raise raised

        assert run([], verb) == code
    assert "a\\x1b" in capsys.readouterr().err
    assert run(["none-such"]) == 2


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """Leave the level as it was."""
    logger = logging.getLogger("penstock")
    before = logger.level
    set_level(logging.WARNING)
    yield
    set_level(logging.WARNING)
    logger.setLevel(before)


def test_packages_of_plugins_log_more_too_also_those_that_are_imported_later() -> None:
    """`-v` showed nothing of consumers, retention and queues."""
    known = get_logger("penstock_messaging.groups.taking")
    assert not known.isEnabledFor(logging.INFO)
    log_more(1)
    assert known.isEnabledFor(logging.INFO)
    assert not known.isEnabledFor(logging.DEBUG)
    # A plugin that does not use Penstock's own loggers is followed when it is loaded.
    follow_level("someones_plugin.strategies")
    assert logging.getLogger("someones_plugin.strategies").isEnabledFor(logging.INFO)
    assert not logging.getLogger("another_library").isEnabledFor(logging.INFO)
    set_level(logging.WARNING)
    assert logging.getLogger("someones_plugin").level == logging.NOTSET


@pytest.mark.parametrize("words", [["-v", "inner"], ["inner", "-v"]])
def test_a_command_of_a_group_takes_it_too(words: list[str]) -> None:
    seen = []

    @click.group
    def outer() -> None:
        pass

    @outer.command
    def inner() -> None:
        seen.append(logging.getLogger("penstock").level)

    assert run(words, with_verbose(with_verbose(outer)), "outer") == 0
    assert seen == [logging.INFO]


def test_every_command_has_it_those_of_plugins_too() -> None:
    def check(group: click.Group, context: click.Context) -> None:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            inner = click.Context(command, info_name=name, parent=context)
            assert any("-v" in parameter.opts for parameter in command.params), inner.command_path
            if isinstance(command, click.Group):
                check(command, inner)

    check(cli, click.Context(cli))


def test_a_plugin_that_the_environment_blocks_is_in_no_command(
    install_plugin: InstallPlugin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install_plugin("blocked-one", "raise AssertionError('imported')")
    monkeypatch.setenv("PENSTOCK_PLUGINS__BLOCK", "blocked_one")
    assert run(["--help"]) == 0
    assert "imported" not in capsys.readouterr().err
    assert run(["plugins"]) == 0
    assert "blocked_one is blocked by plugins.block" in capsys.readouterr().err


PARAMETER = click.Argument(["x"])


def context(path: Path | None) -> click.Context:
    made = click.Context(cli)
    made.params = {"path": path and str(path)}
    return made


def write_offsets(root: Path, text: bytes) -> None:
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_bytes(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"offsetTable": 5}', b'{"offsetTable": [5]}', b"\xff", b"[" * 10**5],
)
def test_offsets_that_cannot_be_read_offer_nothing(text: bytes, tmp_path: Path) -> None:
    write_offsets(tmp_path, text)
    assert groups(context(tmp_path), PARAMETER, "") == []


def test_groups_are_those_that_have_committed_that_have_not_yet_and_that_have_dead_letters(
    tmp_path: Path,
) -> None:
    table: dict[str, dict[str, int]] = {"t@b": {}, "u@b": {}, "t@a": {}, "t": {}, "t@x y": {}}
    write_offsets(tmp_path, json.dumps({"offsetTable": table}).encode())
    for name in ("penstock/groups/new", "consumequeue/%DLQ%old", "consumequeue/orders"):
        (tmp_path / name).mkdir(parents=True)
    assert groups(context(tmp_path), PARAMETER, "") == ["a", "b", "new"]
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


NOW = 1_795_000_000_123
DAY_MS = 24 * 3_600_000


# The years 1 to 9999, which is what a printed time has.
@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_every_printed_time_is_taken_as_it_is(time_ms: int) -> None:
    printed = time_text(time_ms)
    if not printed.endswith(" ms") and printed[:1] != "-" and len(printed.partition("-")[0]) == 4:
        assert parse_time(printed, NOW, up=True) == time_ms
        assert parse_time(printed, NOW, up=False) == time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-23 10:00:00+01:00", 1_795_424_400_000), ("2026-11-23 09:00:00Z", 1_795_424_400_000),
        ("2026-11-23T09:00", 1_795_424_400_000), ("2026-11-23", 1_795_392_000_000), (str(NOW), NOW), ("1795424400", 1_795_424_400_000),
        ("1795424400.0005", 1_795_424_400_001), ("now", NOW),
        ("1h", NOW - 3_600_000), ("90s", NOW - 90_000), ("15min", NOW - 900_000), ("15m", NOW - 900_000),
        ("1h30min", NOW - 5_400_000), ("7d", NOW - 7 * DAY_MS), ("2w", NOW - 14 * DAY_MS), (" 250ms ", NOW - 250),
    ],
)  # fmt: skip
def test_a_time_has_these_forms(text: str, time_ms: int) -> None:
    assert parse_time(text, NOW, up=True) == time_ms


def test_fractions_of_a_millisecond_are_rounded_into_the_range() -> None:
    text = "1970-01-01 00:00:00.000500Z"
    assert (parse_time(text, NOW, up=True), parse_time(text, NOW, up=False)) == (1, 0)


@pytest.mark.parametrize(
    "text", ["", "x", "5", "2026", "5x", "1h ago", "h", "-1h", "2026-13-01", "²", "1e9", "1.5.5h", "9" * 16, "9" * 30]
)  # fmt: skip
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not a time: a time is written like '2026-11-23 10:00:00"
    ):
        parse_time(text, NOW, up=True)


def test_an_option_takes_a_time_by_its_own_clock() -> None:
    clock = ManualClock()
    found = TimeParam(up=True, clock=clock)
    assert found.convert("1s", None, None) == clock.time_ms() - 1000
    assert found.convert(7, None, None) == 7
    with pytest.raises(click.BadParameter, match="is not a time"):
        BEGIN.convert("soon", None, None)


def test_a_range_that_ends_before_it_begins_is_a_mistake() -> None:
    check_order(None, 1)
    check_order(1, 1)
    check_order(2, None)
    with pytest.raises(click.UsageError, match="--since is after --until"):
        check_order(2, 1)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("1h30min", 5_400_000),
        (" 2d ", 172_800_000),
        ("0s", 0),
        ("5", 5000),
        ("1.5h", 5_400_000),
        ("30 s", 30_000),
        ("1.5", 1500),
    ],
)
def test_a_duration_has_these_forms(text: str, ms: int) -> None:
    assert parse_duration(text) == ms
    assert DurationParam().convert(text, None, None) == ms
    assert DurationParam().convert(ms, None, None) == ms


@pytest.mark.parametrize("text", ["", "s", "-5s", "5  s", "1.5.5h", "9" * 13 + "s", "now"])
def test_what_is_no_duration_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="written like 500ms"):
        parse_duration(text)
    with pytest.raises(click.BadParameter, match="is not a duration"):
        DurationParam().convert(text, None, None)
