"""Completion in a shell: which names of the store on the command line come next.

Names come from the folders and the offset file of the store, not from an open store: a shell waits for them at each
Tab. A store holds what others put, and a shell inserts it as it is: only names that no shell interprets are offered.
"""

import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

VARIABLE = "_PENSTOCK_COMPLETE"
_PLAIN = re.compile(r"[A-Za-z0-9%_][A-Za-z0-9%_.+@/-]*")
_OFFSETS_BYTES_MAX = 8 << 20
_DEAD = "%DLQ%"


def complete(command: click.Command, name: str = "penstock") -> int | None:
    """Answer a shell that asks for completions, or for its script; None if none does."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return None
    from click.shell_completion import shell_complete  # noqa: PLC0415 - only if a shell asks

    # A warning, of a plugin that is slow to import for example, would be printed into the line that is being typed.
    silent = logging.NullHandler()
    logging.root.addHandler(silent)
    try:
        return shell_complete(command, {}, name, VARIABLE, asked)
    finally:
        logging.root.removeHandler(silent)


def script(command: click.Command, shell: str, name: str = "penstock") -> str:
    """Return what a shell must evaluate to complete the command."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only for this verb

    found = get_completion_class(shell)
    assert found is not None
    # Not `source`, which starts a bash to look at its version.
    made = found(command, {}, name, VARIABLE)
    return made.source_template % made.source_vars()


def topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the store on the command line that begin as typed."""
    return _offered(_folders(_store(context) / "consumequeue"), incomplete)


def groups(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups of the store on the command line that begin as typed."""
    store = _store(context)
    return _offered({*_committed(store), *_folders(store / "penstock" / "groups")}, incomplete)


def dead_letter_groups(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups that have dead letters, and begin as typed."""
    named = [name for name in _folders(_store(context) / "consumequeue") if name.startswith(_DEAD)]
    return _offered([name.removeprefix(_DEAD) for name in named], incomplete)


def _committed(store: Path) -> set[str]:
    """Return the groups that the offset file names."""
    try:
        with (store / "config" / "consumerOffset.json").open("rb") as file:
            entries: Any = json.loads(file.read(_OFFSETS_BYTES_MAX))["offsetTable"]
        return {entry.partition("@")[2] for entry in entries}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def _store(context: click.Context) -> Path:
    # After an option without its value click has parsed no argument; the path is the first of every verb.
    path = context.params.get("path") or next(iter(context.args), ".")
    return Path(str(path))


def _folders(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir() if entry.is_dir()]
    except (OSError, ValueError):
        return []


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(n for n in names if n.startswith(incomplete) and _PLAIN.fullmatch(n))
