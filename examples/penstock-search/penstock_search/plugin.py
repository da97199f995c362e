"""Registers the strategies and the command of this distribution."""

import click

from penstock import Dispatcher, FlushPolicy, RetentionPolicy, hookimpl
from penstock_search.index import FullTextDispatcher
from penstock_search.policies import EveryFlush, KeepLastRetention
from penstock_search.search import search_command


@hookimpl
def penstock_register_dispatcher() -> list[type[Dispatcher]]:
    """Return the full-text index."""
    return [FullTextDispatcher]


@hookimpl
def penstock_register_flush() -> list[type[FlushPolicy]]:
    """Return the flush policy."""
    return [EveryFlush]


@hookimpl
def penstock_register_retention() -> list[type[RetentionPolicy]]:
    """Return the retention policy."""
    return [KeepLastRetention]


@hookimpl
def penstock_register_commands() -> list[click.Command]:
    """Return the command `search`."""
    return [search_command]
