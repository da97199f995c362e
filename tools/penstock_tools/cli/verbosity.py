"""The option `-v`: how much is logged to standard error."""

import logging

import click

from penstock.escape import set_level

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
HELP = "Log to standard error what is opened, recovered and skipped; -vv logs details, too."


def log_more(verbose: int) -> None:
    """Log at the level for so many `-v`, unless more is logged already."""
    level = LEVELS[min(verbose, len(LEVELS) - 1)]
    set_level(min(logging.getLogger("penstock").getEffectiveLevel(), level))


def with_verbose(command: click.Command) -> click.Command:
    """Add `-v` to a command and to those of its group, for any place in the line; returns the command."""
    taken = {name for parameter in command.params for name in parameter.opts}
    if not taken & {"-v", "--verbose"}:
        command.params.append(
            click.Option(
                ["-v", "--verbose"], count=True, expose_value=False, help=HELP,
                callback=lambda _context, _parameter, count: log_more(count),
            )
        )  # fmt: skip
    for inner in getattr(command, "commands", {}).values():
        with_verbose(inner)
    return command
