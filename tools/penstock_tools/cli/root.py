"""The command group: lazily loaded verbs, and the exit code of each error."""

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from penstock.errors import (
    ConfigError,
    CorruptionError,
    FormatVersionError,
    MessageError,
    MissingExtraError,
    OffsetError,
    OutcomeUnknownError,
    PenstockError,
    PluginError,
    QueueHeldError,
    StorageError,
    StoreFailedError,
    StoreLockedError,
)
from penstock.escape import EscapingFormatter, set_level, visible
from penstock_tools.cli import verbs
from penstock_tools.cli.lazy_group import LazyGroup
from penstock_tools.cli.verbosity import HELP, LEVELS, log_more, with_verbose
from penstock_tools.cli.wording import missing_extra, text_of

FINE, NO, USAGE, IN_USE, CANNOT, CORRUPT, UNKNOWN = range(7)
INTERRUPTED, CLOSED_PIPE = 130, 141

# The first matching class applies.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (StoreLockedError, IN_USE),
    (OutcomeUnknownError, UNKNOWN),
    (QueueHeldError, IN_USE),
    (CorruptionError, CORRUPT),
    (FormatVersionError, CORRUPT),
    (StoreFailedError, CORRUPT),
    (ConfigError, USAGE),
    (MessageError, USAGE),
    (MissingExtraError, USAGE),
    (PluginError, USAGE),
    (OffsetError, NO),
    (StorageError, CANNOT),
    (PenstockError, USAGE),
    (OSError, CANNOT),
)


class Verbs(LazyGroup):
    """The verbs of `penstock`: its own and those that plugins add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every verb, those of Penstock first."""
        return [*self.module_names(), *_plugin_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one verb, importing only its module."""
        found = super().get_command(ctx, cmd_name) or _plugin_verbs().get(cmd_name)
        return None if found is None else with_verbose(found)

    def shown_commands(self, ctx: click.Context) -> dict[str, str]:
        """Return the verbs with what the help says of each."""
        added = _plugin_verbs().items()
        return super().shown_commands(ctx) | {n: c.get_short_help_str(1000) for n, c in added}


def _plugin_verbs() -> dict[str, click.Command]:
    from penstock.plugins.loading import load_commands  # noqa: PLC0415 - not needed for Penstock's own verbs

    return {
        c.name: c
        for c in load_commands(blocked_plugins())
        if isinstance(c, click.Command) and c.name
    }


def blocked_plugins() -> Sequence[str]:
    """Return the plugins that the environment keeps out of stores, and so of commands."""
    if "PENSTOCK_PLUGINS__BLOCK" not in os.environ:
        return ()
    from penstock.config import sources  # noqa: PLC0415 - takes longer to import than `--help` takes in all

    return sources.plugin_lists(sources.gather(None, os.environ, {})).block


@click.group(
    cls=Verbs,
    package=verbs,
    summaries=verbs.SUMMARIES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="penstock")
@click.option("-v", "--verbose", count=True, help=HELP)
def cli(verbose: int) -> None:
    """Store streams of messages, and inspect the stores of RocketMQ brokers.

    Commands that read work on a broker's store directory, live or copied, and change nothing.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=LEVELS[0], handlers=[handler], force=True)
    set_level(LEVELS[0])
    log_more(verbose)


def own_verbs() -> list[str]:
    """Return the names of Penstock's own verbs, without those that plugins add."""
    assert isinstance(cli, Verbs)
    return cli.module_names()


def run(
    arguments: Sequence[str], command: click.Command | None = None, name: str = "penstock"
) -> int:
    """Run one command, by default `penstock` itself; returns its exit code."""
    command = command or cli
    try:
        # Not `cli.main`, which turns a closed pipe into exit code 1.
        with command.make_context(name, list(arguments)) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        # An argument may contain line breaks.
        error.message = visible(error.message or "")  # type: ignore[misc] # the error is shown, then discarded
        error.show(shown)
        sys.stderr.write(visible(shown.getvalue(), keep_lines=True))
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        return CLOSED_PIPE
    except (PenstockError, OSError, ModuleNotFoundError) as error:
        # Any other missing module than one of an extra is a defect, and is raised again.
        own = missing_extra(error, arguments) if isinstance(error, ImportError) else error
        sys.stderr.write(f"penstock: {visible(text_of(own))}\n")
        for note in getattr(own, "__notes__", ()):
            sys.stderr.write(f"  {visible(note)}\n")
        return code_of(own)
    return code if isinstance(code, int) else FINE


def code_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C to the end of this block, so that a step and its count agree; a second Ctrl-C is not delayed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = False

    def wait(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            signal.default_int_handler(number, frame)
        waiting = True

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        # Also if the block failed: the handler of its error would continue the work.
        if waiting:
            raise KeyboardInterrupt


def examples(*lines: str) -> str:
    """Return the examples at the end of a help text, one per line; a test runs them."""
    return "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in lines)
