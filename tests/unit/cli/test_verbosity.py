"""`-v` at any place of a line, and what it logs."""

import logging
from collections.abc import Iterator

import click
import pytest

from penstock.cli.root import cli, run
from penstock.cli.verbosity import log_more, with_verbose
from penstock.escape import follow_level, get_logger, set_level


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """Leave the level as it was."""
    logger = logging.getLogger("penstock")
    before = logger.level
    set_level(logging.WARNING)
    yield
    set_level(logging.WARNING)
    logger.setLevel(before)


def test_more_is_logged_never_less() -> None:
    logger = logging.getLogger("penstock")
    log_more(1)
    assert logger.level == logging.INFO
    log_more(9)
    assert logger.level == logging.DEBUG
    log_more(0)
    assert logger.level == logging.DEBUG


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


@pytest.mark.parametrize(("words", "is_shown"), [(["-v"], True), ([], False)])
def test_what_a_plugin_logs_is_shown(
    words: list[str], is_shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @click.command
    def verb() -> None:
        get_logger("penstock_messaging.groups.taking").info("a topic was deleted")

    assert run(words, with_verbose(verb), "verb") == 0
    assert ("a topic was deleted" in caplog.text) == is_shown


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


def test_an_option_of_that_name_stays() -> None:
    @click.command
    @click.option("-v", "value", default="")
    def verb(value: str) -> None:
        click.echo(value)

    assert [p.name for p in with_verbose(verb).params] == ["value"]


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
