"""Plugins are imported and their hooks checked, without the strategies that they offer."""

import logging

import pytest
from tests.conftest import InstallPlugin

from penstock.plugins.loading import PluginStatus, load_commands, load_plugins

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
