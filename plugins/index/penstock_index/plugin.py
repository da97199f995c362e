"""Registers the dispatchers of this package."""

from penstock import hookimpl
from penstock.contracts import Dispatcher
from penstock_index.consume_queue import ConsumeQueueDispatcher
from penstock_index.hash_index import HashIndexDispatcher


@hookimpl
def penstock_register_dispatcher() -> list[type[Dispatcher]]:
    """Return the built-in dispatchers."""
    return [ConsumeQueueDispatcher, HashIndexDispatcher]
