"""Registers the dispatchers of this package. Imports them only when a store is opened."""

from penstock import hookimpl


@hookimpl
def penstock_register_dispatcher() -> list[type]:
    """Return the built-in dispatchers."""
    from penstock_index.consume_queue import ConsumeQueueDispatcher  # noqa: PLC0415 - see the module
    from penstock_index.hash_index import HashIndexDispatcher  # noqa: PLC0415 - as above

    return [ConsumeQueueDispatcher, HashIndexDispatcher]
