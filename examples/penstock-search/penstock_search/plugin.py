"""What this distribution registers."""

import click

from penstock import Dispatcher, FlushPolicy, RetentionPolicy, hookimpl
from penstock_search.index import FullTextDispatcher
from penstock_search.policies import EveryFlush, KeepLastRetention
from penstock_search.search import search_command


@hookimpl
def penstock_register_dispatcher() -> list[type[Dispatcher]]:
    """Offer the full-text index."""
    return [FullTextDispatcher]


@hookimpl
def penstock_register_flush() -> list[type[FlushPolicy]]:
    """Offer flushing by bytes."""
    return [EveryFlush]


@hookimpl
def penstock_register_retention() -> list[type[RetentionPolicy]]:
    """Offer retention by segments."""
    return [KeepLastRetention]


@hookimpl
def penstock_register_commands() -> list[click.Command]:
    """Add the verb search."""
    return [search_command]
