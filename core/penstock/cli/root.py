"""The command group: verbs, lazily loaded, and what every error means as an exit code."""

import importlib
import io
import logging
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from penstock.cli import verbs
from penstock.errors import (
    ConfigError,
    CorruptionError,
    FormatVersionError,
    MessageError,
    MissingExtraError,
    OffsetError,
    PenstockError,
    PluginError,
    StorageError,
    StoreFailedError,
    StoreLockedError,
)
from penstock.escape import EscapingFormatter, visible

FINE, NO, USAGE, IN_USE, CANNOT, DAMAGE, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 3, 4, 5, 130, 141

# The first class that fits decides.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (StoreLockedError, IN_USE),
    (CorruptionError, DAMAGE),
    (FormatVersionError, DAMAGE),
    (StoreFailedError, DAMAGE),
    (ConfigError, USAGE),
    (MessageError, USAGE),
    (MissingExtraError, USAGE),
    (PluginError, USAGE),
    (OffsetError, NO),
    (StorageError, CANNOT),
    (PenstockError, USAGE),
    (OSError, CANNOT),
)


class Verbs(click.Group):
    """The verbs of `penstock`, ours and those that plugins add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every verb, those of Penstock first."""
        return [*own_verbs(), *_plugin_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one verb, importing only its module."""
        if cmd_name not in own_verbs():
            return _plugin_verbs().get(cmd_name)
        found: click.Command = importlib.import_module(f"penstock.cli.verbs.{cmd_name}").command
        return found


def own_verbs() -> list[str]:
    """Return the names of the modules in `verbs`, which are those of the verbs; a wheel in a zip has them too."""
    return sorted(module.name for module in pkgutil.iter_modules(verbs.__path__))


def _plugin_verbs() -> dict[str, click.Command]:
    from penstock.plugins.registry import load_registry  # noqa: PLC0415 - not needed for our own verbs

    commands = load_registry().commands()
    return {c.name: c for c in commands if isinstance(c, click.Command) and c.name}


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="penstock")
@click.option("-v", "--verbose", is_flag=True, help="Show what the store does, on standard error.")
def cli(verbose: bool) -> None:
    """Store streams of messages, and look into RocketMQ's stores.

    Reading verbs work on a broker's directory as it lies there, live or copied, and change nothing.
    """
    level = logging.INFO if verbose else logging.WARNING
    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def run(
    arguments: Sequence[str], command: click.Command | None = None, name: str = "penstock"
) -> int:
    """Run one command; returns its exit code. `command` is another than `penstock` itself."""
    command = command or cli
    try:
        # Not `cli.main`: that one turns a closed pipe into exit code 1.
        with command.make_context(name, list(arguments)) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        # An argument may begin lines of its own.
        error.message = visible(error.message or "")  # type: ignore[misc] # it is shown and thrown away
        error.show(shown)
        sys.stderr.write(visible(shown.getvalue(), keep_lines=True))
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        return CLOSED_PIPE
    except (PenstockError, OSError) as error:
        sys.stderr.write(f"penstock: {visible(error)}\n")
        for note in getattr(error, "__notes__", ()):
            sys.stderr.write(f"  {visible(note)}\n")
        return code_of(error)
    return code if isinstance(code, int) else FINE


def code_of(error: BaseException) -> int:
    """Return the exit code that an error means."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait for the end of this block, for a step and its count to be one; a second one does not wait."""
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
        # Also where the block failed: what handles its error would go on.
        if waiting:
            raise KeyboardInterrupt


def examples(*lines: str) -> str:
    """Return a help text's end: examples, one a line, which a test runs."""
    return "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in lines)
