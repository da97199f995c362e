"""The manual page `penstock.1`, made from what the commands say of themselves: `python -m tests.docs.man_page`.

It is kept as `docs/penstock.1`, which comes with the wheel, and a test compares the two.
"""

from collections.abc import Iterator

import click

import penstock
from penstock_tools.cli.output import out_block
from penstock_tools.cli.root import cli

# What an exit code of the command means; docs/cli.md has the same.
EXIT_CODES = {
    0: "Success.",
    1: "Nothing was found, or a check failed.",
    2: "The command line, a setting or a message is invalid.",
    3: "The store is in use by another writer; or a consumer group, by a consumer.",
    4: "A file cannot be read or written.",
    5: "Corruption stops the work.",
    6: "Another process was asked to do it, and did not answer: it may be done or not.",
    130: "Interrupted.",
    141: "The pipe was closed.",
}
_CLOSING = (
    ".SH ENVIRONMENT",
    ".TP",
    ".B PENSTOCK_SECTION__KEY",
    "The setting \\fIsection.key\\fR, for example PENSTOCK_FLUSH__USE=sync, or PENSTOCK_PROFILE=rocketmq; \\-\\-set takes precedence.",
    ".SH SEE ALSO",
    "The documentation of Penstock: docs/index.md in its source distribution.",
)


def man_page() -> str:
    """Return the page as roff, in the macros of man(7)."""
    context = click.Context(cli, info_name="penstock")
    lines = [
        '.\\" Made by python -m tests.docs.man_page; do not edit.',
        f'.TH PENSTOCK 1 "" "Penstock {penstock.__version__}" "Penstock"',
        ".SH NAME",
        "penstock \\- store streams of messages, and inspect the stores of RocketMQ brokers",
        ".SH SYNOPSIS",
        ".B penstock",
        "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]",
        ".SH DESCRIPTION",
        *list(_text(cli.help or ""))[1:],
        ".SH OPTIONS",
        *_options(cli, context),
        ".SH COMMANDS",
    ]
    for command, inner in _commands(cli, context):
        lines += _command(command, inner)
    lines.append(".SH EXIT STATUS")
    for code, text in EXIT_CODES.items():
        lines += [".TP", f".B {code}", _escaped(text)]
    return "\n".join([*lines, *_CLOSING]) + "\n"


def _commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield all commands with their contexts, those of a group after the group."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield command, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f'.SS "{_escaped(context.command_path)} {_escaped(usage)}"'
    yield from list(_text(command.help or ""))[1:]  # no new paragraph after a heading
    yield from _options(command, context)
    yield from _text(command.epilog or "")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the options of a command, without `--help`, which all have."""
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            yield ".TP"
            yield f"\\fB{_escaped(record[0])}\\fR"
            yield _escaped(" ".join(record[1].split()))


def _text(text: str) -> Iterator[str]:
    r"""Yield a help text as paragraphs; one that begins with \b keeps its lines, as click keeps them."""
    for paragraph in "\n".join(line.strip(" ") for line in text.splitlines()).split("\n\n"):
        if not paragraph.strip():
            continue
        yield ".PP"
        if paragraph.startswith("\b"):
            yield ".nf"
            yield from map(_escaped, paragraph.removeprefix("\b").strip("\n").splitlines())
            yield ".fi"
        else:
            yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """Return text as roff takes it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "\\&" + text if text.startswith((".", "'")) else text


if __name__ == "__main__":
    out_block(man_page())
