"""A group of commands that imports a command only to run it; a mistyped name is answered with the nearest."""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import click

from penstock_tools.cli.verbosity import with_verbose

# The names shown for a mistyped one.
_NEAR_MAX = 3


class LazyGroup(click.Group):
    """Commands that are modules of one package: the module's name is the command's, its `command` is run.

    Args:
        package: the package, or its name; a name is imported at first use.
        summaries: what the group's help says of a command, so that it need not import the command's module. A command
            that is not in it is imported for that.
    """

    def __init__(
        self,
        *args: Any,
        package: ModuleType | str = "",
        summaries: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._summaries = summaries or {}

    def module_names(self) -> list[str]:
        """Return the names of the package's modules, sorted. Works in a zipped wheel too."""
        if isinstance(self._package, str):
            self._package = importlib.import_module(self._package)
        return sorted(module.name for module in pkgutil.iter_modules(self._package.__path__))

    def load(self, name: str) -> click.Command:
        """Import the module of a command, and return the command."""
        self.module_names()
        assert isinstance(self._package, ModuleType)
        module = importlib.import_module(f"{self._package.__name__}.{name}")
        return with_verbose(module.command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return self.module_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing only its module; None if the name is unknown."""
        return self.load(cmd_name) if cmd_name in self.module_names() else None

    def shown_commands(self, ctx: click.Context) -> dict[str, str]:
        """Return the commands with what the help says of each."""
        names = self.module_names()
        return {
            name: self._summaries.get(name) or self.load(name).get_short_help_str(1000)
            for name in names
        }

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, as click does, without importing them."""
        shown = self.shown_commands(ctx)
        room = formatter.width - 6 - max(map(len, shown))
        rows = [
            (name, click.Command(name, help=text).get_short_help_str(room))
            for name, text in shown.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begins with; the error for an unknown one names the nearest."""
        name = str(args[0])
        if not ctx.resilient_parsing and name[:1] != "-" and not self.get_command(ctx, name):
            near = difflib.get_close_matches(name, self.list_commands(ctx), _NEAR_MAX, 0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "the help lists all commands"
            raise click.UsageError(f"no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)
