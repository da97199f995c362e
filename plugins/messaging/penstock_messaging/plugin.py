"""Registers the extension of this package. Imports it only when a store is opened."""

from typing import TYPE_CHECKING

from penstock import hookimpl

if TYPE_CHECKING:
    from penstock.contracts import Extension


@hookimpl
def penstock_register_extension() -> "list[type[Extension]]":
    """Return the extension `messaging`."""
    from penstock_messaging.extension import MessagingExtension  # noqa: PLC0415 - see the module

    return [MessagingExtension]
